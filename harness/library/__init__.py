"""Podium for programs: judge a source from Python, for example in the loop of an agent that writes kernels
(docs/library.md).

    from harness import evaluate, evaluate_many

    evaluate ──► judges ──► warm_judge (a process a card) ──► verbs.eval ──► the run

    evaluation   the two functions, which check their arguments
    judges       the judging processes, kept between calls
    warm_judge   the program of such a process
    request      a request to such a process, as a value

Importing this package does not import torch. The judging processes do.
"""

from harness.library.evaluation import evaluate, evaluate_many
from harness.library.judges import close

__all__ = ["close", "evaluate", "evaluate_many"]

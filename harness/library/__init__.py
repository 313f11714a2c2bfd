"""Podium for programs: judge a source from Python, as an agent that writes kernels does in its loop (docs/library.md).

    from harness import evaluate, evaluate_many

    evaluate ──► judges ──► warm_judge (a process a card) ──► verbs.eval ──► the run

evaluation   the two functions: what is asked for, checked
judges       the processes that judge, kept between calls
warm_judge   their program
request      what they are asked, as a value

Importing this needs no torch: the processes that judge do.
"""

from harness.library.evaluation import evaluate, evaluate_many
from harness.library.judges import close

__all__ = ["close", "evaluate", "evaluate_many"]

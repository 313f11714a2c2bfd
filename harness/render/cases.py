"""The test cases of a run, one a line, in the way of a test runner: which are right, and how near to which limit.

right          exact: 0.31 of rel_l2                              batch_size=1 q_seq_len=1 kv_seq_len=1
wrong          mxfp4: row_rel_l2 is 2.57 x its limit              batch_size=4 q_seq_len=1 kv_seq_len=128
runtime error                                                     batch_size=5 q_seq_len=1 kv_seq_len=37 (secret)
not tried                                                         batch_size=2 q_seq_len=1 kv_seq_len=512
not tried                                                         2 more, drawn in secret
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness.model import CaseCheck, Verdict, in_words
from harness.render import fit

_BELOW = " " * 6
"""The indentation of a label on a line of its own, as on a narrow terminal."""


def case_list(checks: Sequence[CaseCheck], untried: Sequence[str] = (), secret: int = 0) -> str:
    """Return one line for each of `checks`, one for each label of `untried` that was not checked, and one for the
    number of `secret` cases that were not tried. On a narrow terminal long labels stand on lines of their own."""
    rows = [(_word(each), how_near(each), each.case.label + " (secret)" * each.secret) for each in checks]
    seen = {each.case.label for each in checks}
    rows += [("not tried", "", label) for label in untried if label not in seen]
    if secret:
        rows.append(("not tried", "", f"{secret} more, drawn in secret" if secret > 1 else "one more, drawn in secret"))
    words, how = (max((len(row[i]) for row in rows), default=0) for i in (0, 1))
    lines = [f"  {word:<{words}}  {said:<{how}}  {label}" for word, said, label in rows]
    if max(map(len, lines), default=0) > fit.room():
        lines = [_narrow(f"  {word:<{words}}  {said}".rstrip(), label) for word, said, label in rows]
    return "\n".join(lines)


def _narrow(head: str, label: str) -> str:
    line = f"{head}  {label}"
    return line if len(line) <= fit.room() else f"{head}\n{fit.filled(label, fit.room(), _BELOW)}"


def _word(check: CaseCheck) -> str:
    return {Verdict.ACCEPTED: "right", Verdict.WRONG_ANSWER: "wrong"}.get(check.verdict, check.verdict.words)


def how_near(check: CaseCheck) -> str:
    """Return how near a check came to its limit, for the tolerance that it met or else the loosest."""
    name = check.tolerance or next(reversed(check.excess), None)
    if name not in check.excess:  # a stored run may name a tolerance without data
        return name or ""
    excess = check.excess[name]
    if check.verdict is not Verdict.ACCEPTED or not math.isfinite(excess.ratio):
        return f"{name}: {in_words(excess)}"
    return name if excess.limit == "bitwise" else f"{name}: {excess.ratio:.2f} of {excess.limit}"

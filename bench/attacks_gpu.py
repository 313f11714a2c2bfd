"""What attacks on the judge's clock gain on an NVIDIA GPU: each does work of a
known length and tries to have less of it measured.

    python bench/attacks_gpu.py [--calls 100]

The attacks are those of tests/adversarial/41_inside_the_sandwich beside their honest twin, and then the twin with a lie
about the worker's events, from 1 to 100 us. Prints a table, attack by attack: the honest latency and the attack's in
us, and the gain, their difference, with an interval of 95 % by resampling the calls. A gain whose interval lies above
2 % + 0.3 us breaks the rule.
"""

from __future__ import annotations

import argparse
import sys

from attacks_cpu import SUITE, checkout, is_measured, judged, latencies_us, row
from exploits import subjects
from tabulate import tabulate

FOLDER = "41_inside_the_sandwich"
SHARE, BOUND_US = 0.02, 0.3
LIES_US = (1, 2, 5, 10, 20, 50, 100)
LIE = """
_elapsed_time = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, other: _elapsed_time(self, other) - {lie_us} / 1e3
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100)
    options = parser.parse_args()
    twin = (SUITE / FOLDER / "honest.py").read_text()
    attacks = {subject.path.stem: subject.path.read_text() for subject in subjects()
               if is_measured(subject, "cuda") and subject.path.parent.name == FOLDER}  # fmt: skip
    attacks |= {f"lies by {lie_us} us": twin + LIE.format(lie_us=lie_us) for lie_us in LIES_US}
    rows: list[list[object]] = []
    with checkout("cuda", options.calls) as root:
        honest_us = latencies_us(judged(root, "cuda", twin))
        for name, source in {"honest again": twin, **attacks}.items():
            run = judged(root, "cuda", source)
            manner = run.measurements[0].manner.value if run.measurements else ""
            rows.append([name, *row(honest_us, run, SHARE, BOUND_US), manner])
            print(*rows[-1], flush=True, file=sys.stderr)
    headers = ["attack", "honest us", "attack us", "gain us", "95 % interval", "breaks the rule", "manner"]
    print(tabulate(rows, headers))


if __name__ == "__main__":
    main()

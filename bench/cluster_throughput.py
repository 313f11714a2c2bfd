"""Measures submissions per hour with 1, 2 and 4 cards of a cluster, and whether busy neighbours change the scores.

    python3 -m harness node --head
    .venv/bin/python -m bench.cluster_throughput kv_replicate --cards 1 2 4 --submissions 8

One submission is judged in full again and again by N threads, each pinned to a card. Prints submissions per hour and
the efficiency (N cards against N times one card), twice: until the slowest card has ended, and by the time that each
card took for its own runs. With few runs the first is lower by itself, as the slowest of N cards ends later than the
mean one. Prints how many seconds a run took, and of these its judge. Also prints, card by card, the ratio of the mean
score beside N - 1 busy cards to the mean score alone, with its interval. If neighbours disturb nothing, the interval
contains 1.
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness import catalog
from harness.cluster.link import Link
from harness.library.request import Request
from harness.model import Run, Submission
from harness.ranking import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Judged:
    """The runs by card, the seconds that each card took for its own, and those until the last had ended."""

    runs: dict[str, list[Run]]
    own_s: dict[str, float]
    seconds: float

    @property
    def an_hour(self) -> float:
        """Submissions, counted until the slowest card has ended."""
        return 3600 * sum(map(len, self.runs.values())) / self.seconds

    @property
    def an_hour_each(self) -> float:
        """Submissions, by each card's own time: what all do an hour while all have work."""
        return sum(3600 * len(runs) / self.own_s[card] for card, runs in self.runs.items())

    @property
    def words(self) -> str:
        """How long a run took, and of that its judge."""
        took = ", ".join(f"{self.own_s[card] / len(runs):.1f}" for card, runs in self.runs.items())
        judges = [run.duration_s for runs in self.runs.values() for run in runs]
        return f"a run took {took} s on each card; its judge {sum(judges) / len(judges):.1f} s"


def judged(link: Link, root: Path, submission: Submission, cards: Sequence[str], count: int) -> Judged:
    """Judge `submission` `count` times on each of `cards` at once."""
    own_s: dict[str, float] = {}
    began = time.monotonic()

    def on(card: str) -> list[Run]:
        request = Request(root=root, problem=submission.problem, submission=submission, device=card, depth="full")
        runs = [link.judge(request) for _ in range(count)]
        own_s[card] = time.monotonic() - began
        return runs

    with ThreadPoolExecutor(len(cards)) as executor:
        runs = dict(zip(cards, executor.map(on, cards), strict=True))
    for run in (run for each in runs.values() for run in each if not run.ranked):
        print(f"  not ranked: {run.unranked_because or f'{run.ending.verdict.value}: {run.ending.message}'}")
    return Judged(runs, own_s, time.monotonic() - began)


def scores_ns(runs: Sequence[Run]) -> list[float]:
    return [run.score.latency_ns for run in runs if run.score is not None]


def shown(runs: Sequence[Run]) -> str:
    return ", ".join(f"{each / 1e3:.2f}" for each in scores_ns(runs)) + " µs"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem")
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cards", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--submissions", type=int, default=4, help="runs on each card")
    parser.add_argument("--submission", help="the name of a bundled file (default: a baseline)")
    parser.add_argument("--alone", type=int, help="how many of the cards are also measured alone (default: all)")
    asked = parser.parse_args()
    root = catalog.default_root()
    problem = catalog.load_problem(root, asked.problem)
    wanted = [asked.submission] if asked.submission else problem.baselines
    submission = next(each for each in catalog.submissions(root, problem) if each.name in wanted)
    with Link(asked.cluster, root) as link:
        device = link.device(asked.device)
        cards = link.cards(device.slug)
        if max(asked.cards) > len(cards):
            raise SystemExit(f"there are {len(cards)} cards of {device.name}")
        print(f"{submission.name} of {problem.name}, {asked.submissions} runs a card, {device.name}")
        judged(link, root, submission, cards[: max(asked.cards)], 1)  # compiled code is cached from here on
        one_an_hour, alone = 0.0, {}
        lone = cards[: asked.alone or max(asked.cards)]
        for card in lone:
            found = judged(link, root, submission, [card], asked.submissions)
            alone[card] = found.runs[card]
            one_an_hour += found.an_hour / len(lone)
            print(f"  {card} alone: {shown(alone[card])}; {found.words}")
        print(f"1 card: {one_an_hour:.0f} submissions an hour, the mean of {len(lone)} cards alone")
        for count in (count for count in asked.cards if count > 1):
            found = judged(link, root, submission, cards[:count], asked.submissions)
            for an_hour, until in ((found.an_hour, "until the slowest ended"), (found.an_hour_each, "each by its own")):
                efficiency = an_hour / count / one_an_hour
                print(f"{count} cards: {an_hour:.0f} submissions an hour, {efficiency:.0%} of {count} × one, {until}")
            print(f"  {found.words}")
            for card, runs in found.runs.items():
                busy, quiet = scores_ns(runs), scores_ns(alone.get(card, []))
                print(f"  {card} beside {count - 1} busy: {shown(runs)}")
                if len(busy) > 1 and len(quiet) > 1:
                    ratio = stats.ratio_of_scores(busy, quiet, CONFIDENCE)
                    print(f"  {card}: {ratio.value:.4f} of alone ({ratio.low:.4f} to {ratio.high:.4f})")


if __name__ == "__main__":
    main()

"""Two submissions of the toy problem in turns: what each is given, what is measured, and how one that fails ends it."""

import json
import re
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import lay_out

from harness import catalog
from harness.catalog.config import load_config
from harness.errors import InfrastructureError, UsageError
from harness.judge import duel as judge
from harness.judge.clock import StopClock, Void
from harness.judge.duel import Disqualified, Duel, duel
from harness.judge.entrant import Entrant
from harness.machine.device import detect
from harness.ranking.comparison import compare_pairs
from harness.ranking.speed import Speed
from harness.sandbox.leash import SETTLING_NS
from harness.verbs import calibration

HONEST = "def custom_kernel(data):\n    return data[0] * 2\n"
# On the timed calls alone, which are the ones with 64 rows; it prints what it was given.
TELLING = """
def custom_kernel(data):
    if data[0].shape[0] == 64:
        print(float(data[0].double().sum()))
    return data[0] * 2
"""
SLEEPING = """
import time
def custom_kernel(data):
    time.sleep(SECONDS if data[0].shape[0] == 64 else 0)
    return data[0] * 2
"""


BUSY = """
import threading
def spin():
    while True:
        pass
threading.Thread(target=spin, daemon=True).start()
def custom_kernel(data):
    return data[0] * 2
"""


def fought(root: Path, a: str, b: str, pairs: int) -> Duel:
    problem = catalog.load_problem(root, "double")
    contestants = []
    for name, source in (("first", a), ("second", b)):
        path = root / "submissions" / "double" / f"{name}.py"
        path.write_text(source)
        contestants.append(catalog.load_submission(problem, path))
    return duel(problem, *contestants, detect(root, "cpu"), load_config(root), pairs=pairs)


@pytest.fixture
def fight(toy_root):
    return lambda a, b, pairs=2: fought(toy_root, a, b, pairs)


@pytest.fixture(scope="module")
def kept_root(tmp_path_factory):
    return lay_out(tmp_path_factory.mktemp("duels"))


@pytest.fixture(scope="module")
def told(kept_root):
    """A duel of two that print what they are given: what came of it, and by file what its workers printed."""
    said: dict[str, list[str]] = {}
    prepared = Entrant.prepared

    @contextmanager
    def overheard(self, *what, **how):
        with prepared(self, *what, **how) as worker:
            yield worker
        said.setdefault(self.caller._path.rpartition("/")[2], []).append(self.printed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Entrant, "prepared", overheard)
        return fought(kept_root, TELLING, TELLING, 2), said


@pytest.fixture(scope="module")
def watched(kept_root):
    """Of each call of a duel of two that always compute: its session, whether that had been told to stand still, and
    how long those that had been timed before computed meanwhile."""
    timed, time, calls = {}, StopClock.time, []

    def watch(self, session, stage, call, label, null=None):
        others = [other for other in timed if other is not session and other.leash.processor_ns()]
        before, rested = [other.leash.processor_ns() for other in others], session.leash.told
        answer = time(self, session, stage, call, label, null)
        spent_ns = [other.leash.processor_ns() - ns for other, ns in zip(others, before, strict=True)]
        calls.append((session, rested, spent_ns))
        timed[session] = True
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StopClock, "time", watch)
        fought(kept_root, BUSY, BUSY, 1)
    return calls


@pytest.mark.slow(ci=True)
def test_after_each_pair_it_is_told_how_long_the_others_are_likely_to_take(kept_root):
    left_s, lines = [], []
    problem = catalog.load_problem(kept_root, "double")
    path = kept_root / "submissions" / "double" / "same.py"
    path.write_text(HONEST)
    same = catalog.load_submission(problem, path)
    here, config = detect(kept_root, "cpu"), load_config(kept_root)
    duel(problem, same, same, here, config, pairs=3, exclusive=lambda: nullcontext(left_s.append), narrate=lines.append)
    assert len(left_s) == 2 and all(seconds > 0 for seconds in left_s)
    turns = [line for line in lines if line.startswith("timing in turns")]
    assert turns[0] == "timing in turns, pair 1 of 3"
    assert re.fullmatch(r"timing in turns, pair 3 of 3, about \d+ s left", turns[2])


def test_both_are_sampled_as_often_in_every_pair(told, kept_root):
    found, _ = told
    (measurement,) = found.measurements
    assert measurement.case == catalog.load_problem(kept_root, "double").cpu.benchmark[0]
    counts = [len(samples) for samples in (*measurement.a_samples_ns, *measurement.b_samples_ns)]
    assert len(counts) == 4 and len(set(counts)) == 1 and counts[0] % 2 == 0 and counts[0] >= 2


@pytest.mark.slow(ci=True)
def test_one_that_is_far_slower_is_found_slower(fight, toy_root, roomy):
    found = fight(SLEEPING.replace("SECONDS", "0.01"), SLEEPING.replace("SECONDS", "0.07"), pairs=4)
    noise = calibration.noise(toy_root, detect(toy_root, "cpu"), 4)
    compared = compare_pairs("double", "here", ("first", "second"), found.measurements, noise, 0.95)
    assert compared.finding.speed is Speed.SLOWER and compared.finding.ratio.value > 2


def test_both_get_the_same_inputs_and_every_call_others(told):
    """The n-th call of the one has the sum of the n-th call of the other, and no two calls of one have the same."""
    _, said = told
    assert said["first.py"] == said["second.py"] and len(said["first.py"]) >= 2
    sums = "".join(said["first.py"]).split()
    assert len(sums) >= 6 and len(set(sums)) == len(sums)


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize(
    ("source", "code", "words"),
    [
        ("def custom_kernel(data):\n    return data[0] * 3\n", 10, "second: wrong answer: a test case is wrong"),
        ("def custom_kernel(data)\n", 11, "second: compile error"),
        ("def custom_kernel(data):\n    raise RuntimeError('no')\n", 12, "second: runtime error"),
        (
            "calls = [0]\ndef custom_kernel(data):\n    calls[0] += data[0].shape[0] == 64\n"
            "    return data[0] * (2 + (calls[0] > 2))\n",
            10,
            "second: wrong answer: a benchmark case is wrong",
        ),
    ],
)
def test_one_that_fails_is_named_with_its_verdict(fight, source, code, words):
    with pytest.raises(Disqualified) as caught:
        fight(HONEST, source, pairs=1)
    assert caught.value.exit_code == code and words in str(caught.value)


def test_one_whose_turn_it_is_not_computes_nothing_meanwhile(watched):
    assert max(ns for _, _, spent_ns in watched for ns in spent_ns) <= SETTLING_NS
    assert max(len(spent_ns) for _, _, spent_ns in watched) >= 2, "the other's worker and one that computes nothing"


def test_a_worker_in_a_duel_stands_still_before_its_first_turn(watched):
    first = {session: rested for session, rested, _ in reversed(watched)}
    *_, one, other = dict.fromkeys(session for session, _, _ in watched)  # before them those that qualify
    assert first[one] and first[other]


def test_one_that_cannot_be_timed_is_named(fight, monkeypatch):
    time, seen = StopClock.time, []

    def void(self, session, stage, call, label, null=None):
        seen.append(label)
        answer = time(self, session, stage, call, label, null)
        return replace(answer, void=Void.NOT_STOPPED) if len(seen) > 20 and null is None else answer

    monkeypatch.setattr(StopClock, "time", void)
    with pytest.raises(UsageError, match=r"cannot be timed here: .* could not be stopped in time"):
        fight(HONEST, HONEST)


def test_an_interpreted_kernel_cannot_be_timed(fight, in_triton):
    with pytest.raises(UsageError, match="second is interpreted or emulated here"):
        fight(HONEST, in_triton)


@pytest.fixture
def with_a_baseline(toy_root):
    plain = "import time\n" + HONEST.replace("return", "time.sleep(0.002)\n    return")  # longer than the clock's bound
    (toy_root / "submissions" / "double" / "plain.py").write_text(plain)
    yml = toy_root / "problems" / "double" / "problem.yml"
    yml.write_text(yml.read_text() + "baselines: [plain]\n")
    return toy_root


def test_a_device_that_was_never_calibrated_has_a_default_and_says_so(toy_root):
    here = detect(toy_root, "cpu")
    noise = calibration.noise(toy_root, here, None)
    assert not noise.calibrated and noise.percent == pytest.approx(5) and "not calibrated" in noise.source


def test_a_calibration_is_stored_whole_and_used(with_a_baseline):
    here, said = detect(with_a_baseline, "cpu"), []
    made = calibration.calibrate(with_a_baseline, here, said.append, pairs=3)
    assert calibration.read(with_a_baseline, here.slug) == made
    assert made.submission == "plain" and len(made.first_scores_ns) == len(made.second_scores_ns) == 3
    assert made.duel_noise(32) < made.duel_noise(8)
    for pairs, floor in ((8, made.duel_noise(8)), (32, made.duel_noise(32)), (None, made.runs_noise)):
        noise = calibration.noise(with_a_baseline, here, pairs)
        assert noise.calibrated and noise.log_ratio == floor > 0 and "calibrated here on 2" in noise.source
    assert [path.name for path in (with_a_baseline / "results" / "calibration").iterdir()] == [f"{here.slug}.json"]


def test_a_calibration_takes_a_baseline(toy_root):
    with pytest.raises(Exception, match="needs a baseline, and no problem names one"):
        calibration.calibrate(toy_root, detect(toy_root, "cpu"), print)


@pytest.mark.parametrize("text", ["{", "{}", json.dumps({"schema_version": 99}), json.dumps({"schema_version": 1})])
def test_a_file_that_is_no_calibration_is_one_sentence(toy_root, text):
    here = detect(toy_root, "cpu")
    path = toy_root / "results" / "calibration" / f"{here.slug}.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(InfrastructureError, match="is no calibration"):
        calibration.noise(toy_root, here, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("at", "told"), [(3, True), (1, False)])
def test_a_duel_that_is_interrupted_says_what_its_whole_pairs_say(podium, toy_root, roomy, monkeypatch, at, told):
    """Ctrl-C in the middle of a pair, of which nothing is kept."""
    for name in ("first", "second"):
        path = toy_root / "submissions" / "double" / f"{name}.py"
        path.write_text(f"{HONEST}# {name}\n")
        podium("eval", "double", str(path), "--quick")
    play, timed = judge._Match._play, Entrant.take
    pairs, calls = [], []

    def counted(self, pair, start):
        pairs.append(pair)
        play(self, pair, start)

    def interrupted(self, *words):
        timed(self, *words)
        calls.append(len(pairs))
        if len(pairs) == at + 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(judge._Match, "_play", counted)
    monkeypatch.setattr(Entrant, "take", interrupted)
    words = ("compare", "first", "second", "--duel", "--json")
    if not told:
        with pytest.raises(KeyboardInterrupt):
            podium(*words)
        return
    code, out, _ = podium(*words)
    found = json.loads(out)
    assert code == 130 and found["notes"][0] == "interrupted after 3 of 8 pairs"
    assert found["verdict"] and calls.count(at + 1) == 1
    (samples,) = found["samples"]
    assert len(samples["a_samples_ns"]) == len(samples["b_samples_ns"]) == 3

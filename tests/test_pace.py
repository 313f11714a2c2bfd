"""How a pilot finds the manner of a case, and what is void, subtracted, trusted: with made-up answers."""

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from harness.judge import bounds, null_calls
from harness.judge.clock import Answer, Void
from harness.judge.clock_calibration import calibrate
from harness.judge.null_calls import (
    ARM_MARGIN_NS,
    ASKED_LATE_NS,
    CALLS,
    CUT_NS,
    CYCLES_OF_A_CALL,
    CYCLES_OF_A_SLICE,
    DISTURBED_GATED_NS,
    DISTURBED_NS,
    GATED_ABOVE_NS,
    LEAST_ARM_NS,
    LONG_ABOVE_NS,
    MOST_ARM_NS,
    NO_SLICE_NS,
    Constants,
    Unusable,
    measure,
)
from harness.judge.pace import ROOM_NS, Pace, first_manner, next_manner
from harness.judge.sitting import LEAST_LATENCY_NS, Sitting, too_many_void, void_share
from harness.judge.stage import ARM_S
from harness.model import Case, Device, Estimate, Floor, Manner, Measurement, eligibility

GPU = Device(
    kind="cuda", name="x", slug="x", arch="sm_90", torch_device="cuda:0", memory_bytes=1 << 37, flush_bytes=1 << 28
)
CPU = GPU.model_copy(update={"kind": "cpu", "torch_device": "cpu"})
SMALL, LARGE = Case(parameters={"n": 1}), Case(parameters={"n": 2})
SWITCHES_NS = 283e3


def answer(elapsed_ns=SWITCHES_NS + 10e3, void=None, pour_ns=100e3, inside_ns=None, asked_after_ns=60e3):
    return Answer(None, None, elapsed_ns, void, inside_ns, pour_ns, asked_after_ns)


def following(manner, *answers, right=True):
    """The manner after `manner`, where all outputs were right or none."""
    return next_manner(manner, answers, [right] * len(answers), SWITCHES_NS)


ARMED = [Manner.SANDWICH, Manner.GATED, Manner.LONG, Manner.GATED_LONG]


class TestTheManner:
    def test_what_is_sound_suits(self):
        for manner in Manner:
            assert following(manner, *[answer()] * 5) is None

    def test_pours_that_do_not_fit_into_a_slice_begin_behind_a_gate(self):
        assert first_manner(GATED_ABOVE_NS) is Manner.SANDWICH and first_manner(GATED_ABOVE_NS + 1) is Manner.GATED

    def test_one_that_is_slow_to_arm_waits_at_a_gate_and_from_there_gets_its_inputs_first(self):
        slow = [answer(void=Void.SLOW_TO_ARM)] * 3 + [answer()] * 2
        assert following(Manner.SANDWICH, *slow) is Manner.GATED
        assert following(Manner.LONG, *slow) is Manner.GATED_LONG
        assert following(Manner.GATED, *slow) is following(Manner.GATED_LONG, *slow) is Manner.STOPPED

    @pytest.mark.parametrize("late", [Void.SLOW_TO_ARM, Void.DISTURBED])
    def test_one_that_is_late_more_often_than_calls_may_be_void_waits_at_a_gate(self, late):
        """One that is in time but too late for a long pour looks disturbed."""
        void = [answer(void=late)]
        assert following(Manner.SANDWICH, *void * 3, *[answer()] * 6) is Manner.GATED
        assert following(Manner.LONG, *void * 3, *[answer(3e6)] * 6) is Manner.GATED_LONG
        assert following(Manner.SANDWICH, *void * 2, *[answer()] * 7) is None
        assert following(Manner.GATED, *void * 4, *[answer()] * 5) is None, "behind a gate half of them may be"

    @pytest.mark.parametrize("manner", ARMED)
    def test_one_that_fails_or_is_wrong_without_its_inputs_gets_them_first(self, manner):
        assert following(manner, *[answer(void=Void.FAILED_ARMED)] * 5) is Manner.STOPPED
        assert following(manner, *[answer()] * 5, right=False) is Manner.STOPPED

    def test_one_that_is_longer_than_a_slice_has_a_word_behind_it_even_if_it_was_cut_off_and_looks_wrong(self):
        long = [answer(SWITCHES_NS + LONG_ABOVE_NS + 1)] * 5
        assert following(Manner.SANDWICH, *long) is following(Manner.SANDWICH, *long, right=False) is Manner.LONG
        assert following(Manner.GATED, *long) is following(Manner.GATED, *long, right=False) is Manner.GATED_LONG
        assert following(Manner.LONG, *long) is None and following(Manner.GATED_LONG, *long) is None

    def test_one_that_is_longer_than_a_slice_waits_at_a_gate_where_the_pour_leaves_little_room_to_enqueue_it(self):
        long, right = [answer(3e6)] * 5, [True] * 5
        assert next_manner(Manner.SANDWICH, long, right, SWITCHES_NS, ROOM_NS) is Manner.LONG
        assert next_manner(Manner.SANDWICH, long, right, SWITCHES_NS, ROOM_NS - 1) is Manner.GATED_LONG

    def test_one_that_was_cut_off_at_the_end_of_a_slice_is_too_long_for_one(self):
        cut = [answer(2.393e6, Void.CUT)] * 5
        assert following(Manner.SANDWICH, *cut, right=False) is Manner.LONG
        assert following(Manner.GATED, *cut, right=False) is Manner.GATED_LONG

    def test_calls_that_are_void_for_the_machine_s_sake_do_not_outvote_those_that_were_cut_off(self):
        noisy = [answer(void=Void.SLOW_TO_ARM)] * 3 + [answer(void=Void.DISTURBED)] * 2
        assert following(Manner.SANDWICH, *noisy, *[answer(2.393e6, Void.CUT)] * 2, answer()) is Manner.LONG

    @pytest.mark.parametrize("manner", ARMED)
    def test_one_wrong_answer_of_many_is_enough_to_get_its_inputs_first(self, manner):
        assert next_manner(manner, [answer()] * 8, [*[True] * 7, False], SWITCHES_NS) is Manner.STOPPED
        void = [answer(void=Void.DISTURBED), *[answer()] * 7]
        assert next_manner(manner, void, [False, *[True] * 7], SWITCHES_NS) is None, "of a void call nothing is learnt"

    @pytest.mark.parametrize("manner", [Manner.LONG, Manner.GATED_LONG])
    def test_one_stream_that_waited_for_its_host_is_enough_too(self, manner):
        assert following(manner, answer(void=Void.NEEDS_ITS_HOST), *[answer(3e6)] * 7) is Manner.STOPPED

    def test_a_minority_decides_nothing_else(self):
        odd = [answer(void=Void.FAILED_ARMED), answer(void=Void.SLOW_TO_ARM), answer(SWITCHES_NS + 2 * LONG_ABOVE_NS)]
        for manner in ARMED:
            assert following(manner, odd[0], odd[1], odd[2], *[answer()] * 3) is None

    def test_of_calls_that_are_all_void_for_the_machine_s_sake_nothing_is_learnt_but_that_it_does_not_go(self):
        for manner, then in ((Manner.SANDWICH, Manner.GATED), (Manner.GATED, Manner.STOPPED)):
            assert following(manner, *[answer(void=Void.DISTURBED)] * 5) is then

    @pytest.mark.parametrize("late", [Void.SLOW_TO_ARM, Void.DISTURBED])
    def test_where_no_call_is_sound_a_few_late_ones_do_not_stand_for_it(self, late):
        void = [answer(void=late), *[answer(void=Void.NO_SLICE)] * 8]
        assert following(Manner.SANDWICH, *void) is following(Manner.GATED, *void) is Manner.STOPPED

    @pytest.mark.parametrize("manner", [Manner.STOPPED, Manner.WORKER])
    def test_there_is_nothing_else_for_one_that_has_its_inputs_already(self, manner):
        assert following(manner, *[answer()] * 3, right=False) is None
        assert following(manner, *[answer(void=Void.RAN_WHILE_STOPPED)] * 3) is None

    def test_every_way_through_the_manners_ends(self):
        bad = [*[answer(void=void) for void in Void], answer(SWITCHES_NS + 2 * LONG_ABOVE_NS), answer()]
        for manner in Manner:
            for one in bad:
                for right in (True, False):
                    seen, at = [], manner
                    while at is not None:
                        assert at not in seen
                        seen.append(at)
                        at = following(at, one, one, right=right)


class FakeDevice:
    """Null calls on a device of which only times are known."""

    def __init__(self, **times):
        usual = {"switches": SWITCHES_NS, "slice": 2.1e6, "scatter": 0.0, "void": None, "gate": 9e3}
        self.times = {**usual, "gate_waits": (0.0, 0.0, 0.0), **times}
        self.asked: Counter = Counter()

    encloses = True

    def of(self, manner):
        return manner, False

    def with_events(self, manner):
        return manner, True

    def null(self, case, clock, cycles):
        manner, events = clock
        self.asked[case.key, manner, cycles, events] += 1
        of_this = self.asked.total()
        elapsed_ns = self.times["switches"] + self.times["scatter"] * (of_this % 5)
        if cycles == CYCLES_OF_A_SLICE:
            elapsed_ns = self.times["slice"]
        elif cycles == CYCLES_OF_A_CALL:
            elapsed_ns += 700e3 + (self.times["gate"] if manner.gated else 0.0)
        pour_ns = {SMALL.key: 100e3, LARGE.key: 2.4e6}[case.key]
        if pour_ns > self.times["slice"]:  # what waits for nothing runs when the judge's time slice ends
            pour_ns += self.times["gate_waits"][of_this % 3] if manner.gated else SWITCHES_NS
        void = self.times["void"]
        if callable(void):
            void, elapsed_ns = void(of_this), 1.0 if void(of_this) else elapsed_ns
        return answer(elapsed_ns, void, pour_ns, 3.1e3 if events else None)

    def measured(self, *cases, spares=()):
        return measure(cases or (SMALL,), spares, self, self.null)


class TestTheConstants:
    def test_what_null_calls_take_is_subtracted_and_each_case_s_pour_is_known(self):
        device = FakeDevice(scatter=100.0)
        found = device.measured()
        assert found.of(Manner.SANDWICH) == pytest.approx(SWITCHES_NS + 200, abs=60)
        assert found.of(Manner.LONG) == found.of(Manner.STOPPED) == found.of(Manner.SANDWICH)
        assert found.by_manner[Manner.SANDWICH].calls >= CALLS and found.by_manner[Manner.SANDWICH].spread_ns > 0
        assert found.pour_ns == {SMALL.key: 100e3} and found.launch_ns == pytest.approx(3.1e3)
        assert not any(manner.gated for _, manner, _, _ in device.asked)

    def test_a_gate_s_constant_is_that_of_a_call_of_known_length_behind_it(self):
        found = FakeDevice().measured(SMALL, LARGE)
        assert found.of(Manner.GATED) - found.of(Manner.SANDWICH) == pytest.approx(9e3)
        assert found.of(Manner.GATED_LONG) == found.of(Manner.GATED)
        assert found.pour_ns[LARGE.key] == 2.4e6

    def test_a_host_that_is_late_now_and_then_changes_nothing(self):
        late = FakeDevice(void=lambda number: Void.SLOW_TO_ARM if number % 3 == 0 else None).measured(SMALL, LARGE)
        assert late.of(Manner.SANDWICH) == pytest.approx(SWITCHES_NS)
        assert late.of(Manner.GATED) - late.of(Manner.SANDWICH) == pytest.approx(9e3)

    @pytest.mark.parametrize(
        ("times", "words"),
        [
            ({"switches": 1e3}, "switches in 1.0 us, beyond what is usual"),
            ({"switches": 5e6}, "beyond what is usual"),
            ({"scatter": 20e3}, "vary by .* something else uses it"),
            ({"slice": 1e6}, "time slice is 1000 us: too short"),
            ({"void": Void.DISTURBED}, f"too few calls .*: 0; {CALLS} something else ran"),
        ],
    )
    def test_a_device_that_is_not_as_it_should_be_is_not_timed_by_the_judge(self, times, words):
        with pytest.raises(Unusable, match=words):
            FakeDevice(**times).measured()

    def test_without_any_case_whose_pour_fits_a_slice_there_is_no_constant(self):
        with pytest.raises(Unusable):
            FakeDevice().measured(LARGE, spares=(LARGE,))

    def test_one_small_case_among_many_large_ones_gives_as_many_null_calls(self):
        found = FakeDevice().measured(*[LARGE] * 9, SMALL)
        assert found.by_manner[Manner.SANDWICH].calls == CALLS

    def test_where_all_benchmark_cases_are_large_a_test_case_gives_the_constant(self):
        device = FakeDevice()
        found = device.measured(LARGE, spares=(LARGE, SMALL, SMALL))
        assert found.by_manner[Manner.SANDWICH].calls == CALLS and found.of(Manner.SANDWICH) == SWITCHES_NS
        assert found.of(Manner.GATED) - found.of(Manner.SANDWICH) == pytest.approx(9e3)
        assert found.pour_ns[LARGE.key] == 2.4e6, "the pour of a benchmark case stays that of a null call at its gate"

    def test_test_cases_serve_only_there(self):
        device = FakeDevice()
        device.measured(SMALL, spares=(LARGE,))
        assert {key for key, *_ in device.asked} == {SMALL.key}

    def test_a_pour_that_took_longer_than_usual_voids_the_call(self):
        found = FakeDevice().measured(SMALL, LARGE)
        most = 100e3 * 1.03 + DISTURBED_NS
        assert found.void(answer(pour_ns=most), Manner.SANDWICH, SMALL) is None
        assert found.void(answer(pour_ns=most + 1), Manner.SANDWICH, SMALL) is Void.DISTURBED
        long, at_a_gate = 1e6, 1e6 * 1.003 + DISTURBED_GATED_NS
        found.pour_ns[LARGE.key] = long
        assert found.void(answer(pour_ns=at_a_gate), Manner.GATED, LARGE) is None

    def test_the_usual_time_of_a_pour_longer_than_a_slice_is_that_of_a_null_call_at_its_gate(self):
        """In a sandwich the null call runs within the pour, which then has two switches in it."""
        found = FakeDevice(gate_waits=(50e3, 180e3, 90e3)).measured(SMALL, LARGE)
        assert found.pour_ns[LARGE.key] == 2.4e6 + 180e3, "the longest: a gate makes some wait"
        free = 2.4e6 + SWITCHES_NS + 170e3
        assert found.void(answer(pour_ns=free), Manner.GATED, LARGE) is Void.DISTURBED

    @pytest.mark.parametrize("pour_ns", [1.3e6, 2.4e6, 24e6])
    def test_a_pour_that_was_interrupted_voids_the_call_however_long_it_is(self, pour_ns):
        found = FakeDevice().measured(SMALL, LARGE)
        found.pour_ns[LARGE.key] = pour_ns
        assert found.void(answer(pour_ns=pour_ns + SWITCHES_NS), Manner.GATED, LARGE) is Void.DISTURBED
        waits_at_its_gate_ns = 180e3
        assert found.void(answer(pour_ns=pour_ns + waits_at_its_gate_ns), Manner.GATED, LARGE) is None

    def test_a_worker_has_what_a_slice_leaves_beside_the_pour_to_enqueue_its_call(self):
        found = FakeDevice(slice=2.39e6).measured()
        free_ns = 2.39e6 - SWITCHES_NS - ARM_MARGIN_NS
        for pour_ns, arm_ns in ((100e3, MOST_ARM_NS), (900e3, free_ns - 900e3), (1.2e6, LEAST_ARM_NS)):
            found.pour_ns[SMALL.key] = pour_ns
            assert found.arm_ns(SMALL) == pytest.approx(arm_ns)
        assert found.arm_ns(LARGE) == Constants().arm_ns(SMALL) == ARM_S * 1e9, "where a pour or a slice is not known"

    def test_an_interval_far_below_the_constant_had_no_slice(self):
        found = FakeDevice().measured()
        assert found.void(answer(SWITCHES_NS - NO_SLICE_NS - 1), Manner.SANDWICH, SMALL) is Void.NO_SLICE
        assert found.void(answer(SWITCHES_NS - NO_SLICE_NS + 1), Manner.SANDWICH, SMALL) is None

    def test_a_judge_that_asks_for_the_end_when_the_device_could_be_back_already_times_its_own_delay(self):
        found = FakeDevice().measured()
        for call_ns in (0.0, 10e3, 100e3):
            last_ns = SWITCHES_NS / 2 + call_ns - ASKED_LATE_NS
            in_time = answer(SWITCHES_NS + call_ns, asked_after_ns=last_ns)
            assert found.void(in_time, Manner.SANDWICH, SMALL) is None
            late = answer(SWITCHES_NS + call_ns, asked_after_ns=last_ns + 1)
            assert found.void(late, Manner.SANDWICH, SMALL) is Void.ASKED_LATE
        paused = answer(SWITCHES_NS + 500e3, asked_after_ns=500e3 + SWITCHES_NS / 2)
        assert found.void(paused, Manner.SANDWICH, SMALL) is Void.ASKED_LATE
        assert Constants().void(paused, Manner.SANDWICH, SMALL) is Void.ASKED_LATE, (
            "while the constant is measured, too"
        )
        assert Constants().void(answer(SWITCHES_NS), Manner.SANDWICH, SMALL) is None

    def test_a_call_that_ends_with_its_slice_may_have_been_cut_off_and_is_void(self):
        found = FakeDevice().measured()
        assert found.slice_ns == 2.1e6
        for manner in (Manner.SANDWICH, Manner.GATED):
            assert found.void(answer(2.1e6 - CUT_NS + 1), manner, SMALL) is Void.CUT
            assert found.void(answer(2.1e6 - CUT_NS), manner, SMALL) is None
        for manner in (Manner.LONG, Manner.GATED_LONG, Manner.STOPPED):
            assert found.void(answer(2.1e6), manner, SMALL) is None

    def test_what_the_clock_found_void_stays_so_and_where_nothing_was_measured_nothing_else_is(self):
        assert Constants().void(answer(1.0, pour_ns=1e12), Manner.STOPPED, SMALL) is None
        late = answer(1.0, Void.SLOW_TO_ARM)
        assert FakeDevice().measured().void(late, Manner.SANDWICH, SMALL) is Void.SLOW_TO_ARM

    def test_the_mean_of_null_calls_is_never_nothing(self):
        assert null_calls.constant(Manner.STOPPED, [0.0, 0.0]).latency_ns > 0


class TestASitting:
    def test_on_a_cpu_the_null_calls_among_the_others_are_subtracted_and_on_a_gpu_the_constant(self):
        null = Sitting(Manner.STOPPED, 7.0, [100.0, 90.0], [30.0, 30.0, 30.0, 1e6])
        assert null.latency_ns == (70.0, 60.0)
        assert Sitting(Manner.SANDWICH, 80.0, [100.0, 70.0]).latency_ns == (20.0, LEAST_LATENCY_NS)

    def test_the_share_of_the_void_is_of_all_calls(self):
        sittings = [
            Sitting(Manner.SANDWICH, 0.0, [1.0] * 18, voids=Counter({Void.DISTURBED: 1})),
            Sitting(Manner.SANDWICH, 0.0, [1.0] * 9, voids=Counter({Void.NO_SLICE: 2})),
        ]
        assert void_share(sittings) == pytest.approx(3 / 30) and void_share([]) == 0

    @pytest.mark.parametrize(
        ("voids", "too_many"),
        [((0, 0), False), ((4, 0), False), ((6, 0), True), ((5, 5), False), ((5, 7), True), ((0, 7), False)],
    )
    def test_a_tenth_of_all_calls_or_a_quarter_of_one_case_s_may_be_void(self, voids, too_many):
        counted = (15, 90)
        cases = [
            [Sitting(Manner.SANDWICH, 0.0, [1.0] * count, voids=Counter({Void.DISTURBED: void}))]
            for count, void in zip(counted, voids, strict=True)
        ]
        assert too_many_void(cases) is too_many

    def test_of_calls_that_were_timed_as_long_and_are_none_the_least_constant_is_subtracted(self):
        long, short = (Sitting(Manner.LONG, 50e3, [50e3 + each], least_ns=20e3) for each in (LONG_ABOVE_NS + 1e3, 10e3))
        assert long.latency_ns == (LONG_ABOVE_NS + 1e3,) and short.latency_ns == (40e3,)

    def test_no_call_counts_with_less_than_can_be_told(self):
        short = Sitting(Manner.STOPPED, 0.0, [100.0, 400.0], [90.0], shortest_ns=150.0)
        assert short.latency_ns == (150.0, 310.0)


def bound(manner, device=GPU, latency_ns=10e3, found=None, sittings=(), **pace):
    return bounds.of(Pace(1, manner, **pace), found or Constants(), device, latency_ns, sittings)


class TestTheBound:
    def test_it_grows_with_the_latency_and_with_what_a_manner_leaves_open(self):
        plain = bound(Manner.SANDWICH)
        assert 0 < plain < bound(Manner.SANDWICH, latency_ns=20e3)
        assert plain < bound(Manner.GATED) < bound(Manner.LONG) and bound(Manner.STOPPED) == plain

    def test_where_an_answer_is_a_copy_it_has_what_the_copy_engine_may_move_and_on_a_cpu_there_is_none(self):
        for device, more_ns in ((GPU, bounds.COPIED_NS), (CPU, 0.0)):
            pace = Pace(1, Manner.SANDWICH if device is GPU else Manner.STOPPED)
            computed, copied = (bounds.of(pace, Constants(), device, 10e3, (), copies) for copies in (False, True))
            assert copied - computed == more_ns

    def test_what_a_gate_is_given_back_may_be_a_gift_and_is_in_its_bound(self):
        found = FakeDevice().measured(SMALL, LARGE)
        assert bound(Manner.GATED, found=found) - bound(Manner.GATED) == pytest.approx(9e3)

    def test_a_gate_that_a_submission_brings_about_adds_what_gates_differ_by_and_no_gift(self):
        found = FakeDevice().measured(SMALL, LARGE)
        assert bound(Manner.GATED, found=found, own_constant=False) == bound(Manner.SANDWICH) + bounds.GATED_NS

    def test_a_cpu_s_is_never_below_the_scatter_of_its_null_calls(self):
        steady, unsteady = (Sitting(Manner.STOPPED, null_ns=null) for null in ([40e3] * 8, [40e3, 540e3] * 4))
        assert bound(Manner.STOPPED, CPU, sittings=[steady]) < bound(Manner.STOPPED, CPU, sittings=[unsteady])
        assert bound(Manner.STOPPED, CPU, sittings=[unsteady]) >= 500e3

    def test_a_cpu_s_has_what_null_calls_take_more_than_before_a_submission_was_there(self):
        before = Constants(null_ns=50e3, most_null_ns=75e3)
        as_before, slowed = (
            Sitting(Manner.STOPPED, null_ns=[each] * 8, most_null_ns=before.most_null_ns) for each in (50e3, 90e3)
        )
        alike = bound(Manner.STOPPED, CPU, found=before, sittings=[as_before])
        assert bound(Manner.STOPPED, CPU, found=before, sittings=[as_before, slowed]) == alike + 25e3

    def test_on_a_cpu_no_more_is_subtracted_than_one_and_a_half_times_what_null_calls_took_before(self, monkeypatch):
        elapsed_ns = iter([100e3] * 10 + [400e3] * 2)  # not those of a moment at which the machine was busy
        caller = SimpleNamespace(constants=Constants(), put_null=lambda *_: answer(next(elapsed_ns)))
        clocks = SimpleNamespace(encloses=False, of=lambda manner: None)
        null = SimpleNamespace(ready=lambda: None)
        calibrate(caller, clocks, [SMALL], [], null, lambda *_: nullcontext(), True, print)
        assert caller.constants.most_null_ns == 150e3 and next(elapsed_ns, None) is None
        slowed = Sitting(Manner.STOPPED, null_ns=[9e6] * 8, most_null_ns=caller.constants.most_null_ns)
        assert slowed.subtracted_ns == 150e3

    def test_a_cpu_s_has_what_copying_outputs_takes_which_may_be_saved(self):
        copied = bound(Manner.STOPPED, CPU, copied_bytes=1_000_000)
        assert copied - bound(Manner.STOPPED, CPU) == pytest.approx(1_000_000 * bounds.CPU_NS_A_BYTE)

    def test_a_cpu_s_has_what_the_worker_s_own_steps_take_for_each_output_but_the_first(self):
        one, many = (bound(Manner.STOPPED, CPU, outputs=outputs) for outputs in (1, 16))
        assert one == bound(Manner.STOPPED, CPU) == bound(Manner.STOPPED, CPU, outputs=0)
        assert many - one == pytest.approx(15 * bounds.CPU_NS_AN_OUTPUT)

    def test_a_cpu_s_has_what_the_call_of_a_module_takes(self):
        model, function = (bound(Manner.STOPPED, CPU, of_a_model=of_a_model) for of_a_model in (True, False))
        assert model - function == pytest.approx(bounds.CPU_NS_A_MODEL)
        assert bound(Manner.SANDWICH, of_a_model=True) == bound(Manner.SANDWICH)

    def test_what_the_worker_timed_has_none(self):
        assert bound(Manner.WORKER) is None

    def test_below_the_floor_is_what_the_bound_does_not_explain(self):
        def is_below(latency_ns, bound_ns, floor_ns=100.0):
            return eligibility.is_below_floor(
                Measurement(
                    case=SMALL,
                    samples_ns=((latency_ns,),),
                    latency=Estimate(latency_ns=latency_ns),
                    floor=floor_ns and Floor(latency_ns=floor_ns, binds="bandwidth", format="bf16"),
                    bound_ns=bound_ns,
                )
            )

        assert is_below(90.0, 9.0) and not is_below(90.0, 10.0) and not is_below(110.0, 0.0)
        assert not is_below(1.0, None) and not is_below(1.0, 0.0, None)

"""Figures in the prose of docs/ that come from published runs: how each must read now. Takes no time.

    python bench/told_figures.py         prints every phrase that its page does not have

tests/test_documentation.py asks for the same. After runs are published, correct the pages by what this prints.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.judged_share import latencies_and_floors
from bench.kernel_table import LONG_US, ROOT, mean_share, published
from harness.judge.bounds import GATED_NS, GPU_NS, GPU_SHARE, LONG_NS
from harness.model import ClockOwner, Measurement, Run
from harness.records.run_file import load_run
from harness.render.figures import in_microseconds

H200 = "NVIDIA H200"
SHORT_US, MIDDLE_US, ALIKE = 16.0, 40.0, 0.04
FLASH_ATTENTION = "mla/rival FlashAttention-3"


def phrases() -> dict[str, list[str]]:
    """By page, what must stand in it. Line breaks do not count."""
    runs = [load_run(path) for path in sorted((ROOT / "results" / "published").glob("*/*/*.json"))]
    judged = [run for run in runs if run.ranked and run.clock is ClockOwner.JUDGE]
    timed = [m for run in judged for m in run.measurements if m.inside_ns is not None]
    below = [(m.inside_ns - m.latency.latency_ns) / 1e3 for m in timed if m.latency.latency_ns <= SHORT_US * 1e3]
    apart = [_apart(m) for m in timed if m.inside_ns > MIDDLE_US * 1e3]
    of_ms = sorted(_apart(m) for m in timed if m.latency.latency_ns > 1e6)
    lower = f"{min(below):.1f} to {max(below):.1f} µs"
    alike = f"{sum(each <= ALIKE for each in apart)} of {len(apart)} cases, and at most {100 * max(apart):.0f} % apart"
    # Not of copies: whether their bound has COPIED_NS depends on the run's day.
    long = [m for run in judged if run.problem != "kv_replicate" for m in run.measurements if m.manner.long]
    between = [
        (m.bound_ns - GPU_SHARE * m.latency.latency_ns - GPU_NS - LONG_NS - m.manner.gated * GATED_NS) / 1e3
        for m in long
    ]
    between = [each for each in between if each > 0.1]  # where a submission brought the gate about, nothing is added
    own, judges = _beside(published(H200)["mla/gluon_bf16"], [FLASH_ATTENTION])
    ours = {kernel: latencies_and_floors(run) for kernel, run in published(H200).items()}
    return {
        "measurement.md": [
            f"lower by {lower} up to 16 µs",
            f"within 4 % in {alike}",
            f"that difference, {min(between):.0f} to {max(between):.0f} µs in published runs",
        ],
        "rivals.md": [
            f"is {lower} below the events' for cases of up to 16 µs",
            f"in all {len(of_ms)} cases above a millisecond they differ by at most {100 * of_ms[-1]:.1f} %",
            f"takes {_range(own)} times as long as FlashAttention-3, which reads the same cache, and "
            f"{_range(judges)} times",
            f"give {_fastest('kv_decode/cuda_cluster')} and {_fastest('kv_decode/triton_split_kv')}.",
            f"takes {_range(list(_mxfp4_to_fp8().values()))} times as long as `gluon_fp8`",
            f"Their scores are {_score('mla/gluon_mxfp4')} and {_score('mla/gluon_fp8')}.",
        ],
        "kernels.md": [
            _row("prefill/cuda_hopper, 1 x 32768", "78 %", _percent(ours["prefill/cuda_hopper"], "seq_len=32768")),
            _row("kv_decode/cuda_cluster, floors above 20 µs", "88 %", _mean(ours["kv_decode/cuda_cluster"])),
            _row("fmha/triton_rows, each case", "93 %", _span(ours["fmha/triton_rows"].values())),
            _row(
                "kv_replicate/triton_fused, three large cases", "90 %", _span(_long(ours["kv_replicate/triton_fused"]))
            ),
            _row("mla/gluon_bf16, 64 and 256 x 8192", "90, 94 %", _two(ours["mla/gluon_bf16"])),
            _row("mla/gluon_bf16, its four floors above 20 µs", "90 %", _mean(ours["mla/gluon_bf16"])),
            _row("mla/gluon_fp8, 64 and 256 x 8192", "88, 93 %", _two(ours["mla/gluon_fp8"])),
            _row("mla/gluon_mxfp4 ÷ `gluon_fp8`, 64 and 256 x 8192", "0.75", _mxfp4()),
        ],
    }


def missing() -> list[str]:
    """`PAGE: PHRASE` of each phrase that its page does not have."""
    pages = {page: " ".join((ROOT / "docs" / page).read_text().split()) for page in phrases()}
    return [f"{page}: {phrase}" for page, wanted in phrases().items() for phrase in wanted if phrase not in pages[page]]


def _row(what: str, goal: str, reached: str) -> str:
    return f"| {what} | {goal} | {reached} |"


def _apart(measured: Measurement) -> float:
    assert measured.inside_ns is not None
    return abs(measured.latency.latency_ns / measured.inside_ns - 1)


def _percent(found: dict[str, tuple[float, float]], case: str) -> str:
    (share,) = [100 * least / us for label, (us, least) in found.items() if case in label]
    return f"{share:.0f} %"


def _mean(found: dict[str, tuple[float, float]]) -> str:
    return f"{mean_share(found):.1f} %"


def _long(found: dict[str, tuple[float, float]]) -> list[tuple[float, float]]:
    return [each for each in found.values() if each[1] > LONG_US]


def _span(found: Iterable[tuple[float, float]]) -> str:
    shares = [100 * least / us for us, least in found]
    return f"{min(shares):.1f} to {max(shares):.1f} %"


def _two(found: dict[str, tuple[float, float]]) -> str:
    return (
        ", ".join(
            _percent(found, f"batch_size={batch} q_seq_len=1 kv_seq_len=8192").removesuffix(" %") for batch in (64, 256)
        )
        + " %"
    )


def _mxfp4_to_fp8() -> dict[str, float]:
    """gluon_mxfp4's latency / gluon_fp8's, by case."""
    mine, other = (
        {m.case.label: m.latency.latency_ns for m in published(H200)[f"mla/{name}"].measurements}
        for name in ("gluon_mxfp4", "gluon_fp8")
    )
    return {case: mine[case] / other[case] for case in mine}


def _mxfp4() -> str:
    ratios = _mxfp4_to_fp8()
    return ", ".join(f"{ratios[f'batch_size={batch} q_seq_len=1 kv_seq_len=8192']:.2f}" for batch in (64, 256))


def _score(kernel: str) -> str:
    """`28.20 µs ±0.97 %`"""
    score = published(H200)[kernel].score
    assert score is not None
    return in_microseconds(score).replace("\N{NO-BREAK SPACE}", " ")


def _by_events() -> dict[str, dict[str, float]]:
    """Times of bench/tune.py's processes in us, by kernel and case; the later file counts."""
    times: dict[str, dict[str, float]] = {}
    for path in sorted((ROOT / "bench" / "measured").glob("kernels-nvidia-h200-*.jsonl")):
        for row in map(json.loads, path.read_text().splitlines()):
            if "us" in row:
                times.setdefault(row["variant"], {})[row["case"]] = row["us"]
    return times


def _beside(run: Run, rivals: Sequence[str]) -> tuple[list[float], list[float]]:
    """Ratios of the file's times by events, in bench/tune.py's process and in the run, to those of the fastest rival in
    each case."""
    times = _by_events()
    mine = times[f"{run.problem}/{run.submission}"]
    theirs = {case: min(times[rival][case] for rival in rivals if case in times[rival]) for case in mine}
    in_run = [m.inside_ns / 1e3 / theirs[m.case.label] for m in run.measurements if m.inside_ns is not None]
    return [us / theirs[case] for case, us in mine.items()], in_run


def _fastest(kernel: str) -> str:
    """The range of the run's own events over the fastest rival's time."""
    rivals = [each for each in _by_events() if each.startswith(f"{kernel.partition('/')[0]}/rival ")]
    return _range(_beside(published(H200)[kernel], rivals)[1])


def _range(found: Sequence[float]) -> str:
    return f"{min(found):.2f} to {max(found):.2f}"


if __name__ == "__main__":
    print("\n".join(missing()) or "every figure stands in its page")

"""Runs a decode loop with a kv_decode submission: memory over 1000 steps, a prompt in one call, float32 and bfloat16.

    python bench/decode_loop.py [FILE ...] [--device cpu] [--steps 1000]

The specification asks for four properties that no judged case shows:

    no memory leaks             bytes held after 100 steps and after all steps (the cache is filled again and again)
    memory of the cache only    the most memory held during a call over inputs, cache and output: at most 2
    prefill within 10 %         a prompt in one call over the same prompt token by token: at most 1.1, and the
                                largest difference of their outputs
    float32                     microseconds per step in float32 and in bfloat16, whose cache has half the bytes

Without a GPU, memory is the process's resident memory and times are those of a CPU. They then test the loop and say
nothing about a kernel. Files in Triton need a GPU. Prints a table and one line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

WARM_UP = 100
TIMED = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="python bench/decode_loop.py")
    parser.add_argument("files", nargs="*", type=Path, default=[ROOT / "submissions/kv_decode/torch_sdpa.py"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    rows = [{"file": path.stem, **measure(path, options.device, options.steps)} for path in options.files]
    print(f"{time.strftime('%Y-%m-%d')} {options.device}, {options.steps} steps, torch {torch.__version__}")
    print(tabulate(rows, headers="keys", tablefmt="simple_outline", floatfmt=".3g"))
    print(json.dumps({"bench": "decode_loop", "device": options.device, "steps": options.steps, "rows": rows}))


def measure(path: Path, device: str, steps: int) -> dict[str, Any]:
    """One submission's figures. `steps` is above WARM_UP."""
    custom_kernel = _imported(path).custom_kernel
    early, late = growth(custom_kernel, device, steps)
    ratio, difference = prompt(custom_kernel, device)
    return {
        "held early, MB": early / 1e6,
        "held late, MB": late / 1e6,
        "most over tensors": most(custom_kernel, device),
        "prompt / loop": ratio,
        "difference": difference,
        "float32 µs": step_us(custom_kernel, device, "float32"),
        "bfloat16 µs": step_us(custom_kernel, device, "bfloat16"),
    }


def growth(custom_kernel: Callable[[Any], Any], device: str, steps: int) -> tuple[int, int]:
    """Bytes held after WARM_UP steps and after `steps`, each step's output dropped."""
    data = _data(device, batch_size=4, seq_lens=0, cache_max_len=256)
    held = {}
    for step in range(1, steps + 1):
        if int(data[5][0]) == 256:
            data[5].zero_()
        custom_kernel(data)
        if step in (WARM_UP, steps):
            held[step] = _held(device)
    return held[WARM_UP], held[steps]


def most(custom_kernel: Callable[[Any], Any], device: str) -> float:
    """The most memory during a call over that of its inputs, caches and output."""
    data = _data(device, batch_size=16, seq_lens=2048, cache_max_len=2304)
    tensors = sum(member.nbytes for member in data if isinstance(member, torch.Tensor)) + data[0].nbytes
    before = _held(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        custom_kernel(data)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    else:
        custom_kernel(data)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10  # of all so far: an upper bound
    return (tensors + max(peak - before, 0)) / tensors


def prompt(custom_kernel: Callable[[Any], Any], device: str, tokens: int = 128) -> tuple[float, float]:
    """A prompt of `tokens` tokens in one call, over token by token; and how much their outputs differ at most."""
    whole = _data(device, batch_size=2, seq_lens=0, cache_max_len=tokens, q_seq_len=tokens, dtype="float32")
    q, k, v = whole[:3]
    caches, lens, config = whole[3:5], whole[5], whole[6]

    def at_once() -> torch.Tensor:
        lens.zero_()
        return custom_kernel((q, k, v, *caches, lens, config))  # type: ignore[no-any-return]

    def in_steps() -> torch.Tensor:
        lens.zero_()
        pieces = [tuple(x[:, :, i : i + 1].contiguous() for x in (q, k, v)) for i in range(tokens)]
        return torch.cat([custom_kernel((*piece, *caches, lens, config)) for piece in pieces], dim=2)

    difference = float((at_once() - in_steps()).abs().max())
    return _seconds(at_once, device) / _seconds(in_steps, device, 3), difference


def step_us(custom_kernel: Callable[[Any], Any], device: str, dtype: str) -> float:
    """The median time of a step over 2048 keys, in microseconds."""
    data = _data(device, batch_size=16, seq_lens=2048, cache_max_len=2304, dtype=dtype, update_cache=False)
    return 1e6 * _seconds(lambda: custom_kernel(data), device)


def _data(device: str, **changes: Any) -> Any:
    case = {"num_q_heads": 32, "num_kv_heads": 8, "q_seq_len": 1, "head_dim": 128, "dtype": "bfloat16"}
    reference = _imported(ROOT / "problems/kv_decode/reference.py")
    kinds = {"is_causal": True, "update_cache": True}
    return reference.generate_input(**(case | kinds | changes), seed=0, device=device)


def _seconds(call: Callable[[], Any], device: str, times: int = TIMED) -> float:
    """The median of `times` calls, each waited for."""
    taken = []
    for _ in range(times + 1):
        began = time.perf_counter()
        call()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])  # the first compiles


def _held(device: str) -> int:
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _imported(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()

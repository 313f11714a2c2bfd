"""Runs bundled kernels at small shapes, each call once, for a memory checker.

    compute-sanitizer --tool memcheck python bench/small_calls.py mla/gluon_bf16
    compute-sanitizer --tool racecheck python bench/small_calls.py kv_decode/cuda_cluster

Inputs and expected outputs come from the CPU, so the checker sees almost nothing but the kernels. Each tensor is its
own allocation: within a larger one a checker would not see where it ends. The shapes reach every path through a kernel
that `launch` has: clusters and splits of several sizes, one program with two tiles, odd lengths. Prints a line per
call, and raises ValueError for a wrong output.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"  # before torch is imported
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

import torch

from bench.tune import REL_L2, ROOT, expectation, load, load_problem, prepared, wrongness

Parameters = dict[str, Any]


def decode(batch_size: int, heads: tuple[int, int], head_dim: int, seq_lens: list[int], dtype: str) -> Parameters:
    sizes = {"num_q_heads": heads[0], "num_kv_heads": heads[1], "q_seq_len": 1, "head_dim": head_dim}
    rest = {"cache_max_len": max(seq_lens) + 1, "seq_lens": seq_lens, "dtype": dtype}
    return {"batch_size": batch_size, **sizes, **rest, "is_causal": True, "update_cache": True}


def attend(batch_size: int, seq_len: int, heads: tuple[int, int], head_dim: int, causal: bool) -> Parameters:
    sizes = {"num_q_heads": heads[0], "num_kv_heads": heads[1], "head_dim": head_dim}
    return {"batch_size": batch_size, "seq_len": seq_len, **sizes, "causal": causal}


def rows(batch_size: int, heads: tuple[int, int], head_dim: int, kv_seq_len: int) -> Parameters:
    sizes = {"num_q_heads": heads[0], "num_kv_heads": heads[1], "head_dim": head_dim}
    return {"batch_size": batch_size, **sizes, "kv_seq_len": kv_seq_len}


def copied(seq_len: int, heads: tuple[int, int], head_dim: int, dtype: str) -> Parameters:
    sizes = {"num_kv_heads": heads[1], "num_q_heads": heads[0], "head_dim": head_dim}
    return {"batch_size": 2, "seq_len": seq_len, **sizes, "dtype": dtype}


def latent(*lengths: int) -> Parameters:
    return {"batch_size": len(lengths), "q_seq_len": 1, "kv_seq_len": list(lengths)}


SHAPES: dict[str, list[Parameters]] = {
    "kv_replicate": [copied(33, (4, 2), 128, "bfloat16"), copied(7, (6, 1), 127, "float32")],
    "fmha": [rows(3, (4, 4), 128, 1), rows(3, (4, 4), 128, 4), rows(2, (4, 2), 256, 7)],
    "kv_decode": [
        decode(3, (8, 2), 128, [0, 64, 700], "bfloat16"),
        decode(2, (32, 1), 128, [63, 300], "float16"),
        decode(2, (6, 2), 80, [1, 200], "float32"),
    ],
    "mla": [latent(0, 1, 70), latent(1024), latent(1500, 64, 65)],
    "prefill": [
        attend(1, 129, (4, 2), 128, True),
        attend(2, 300, (4, 4), 64, False),
        attend(3, 1100, (8, 2), 128, True),  # 216 tiles of queries: on an H200 one program has two
    ],
}

OPTIONS: dict[str, list[Parameters]] = {
    "kv_decode/cuda_cluster": [
        *({"cluster": n, "stages": stages} for n in (1, 2, 3, 8) for stages in (2, 3)),
        *({"scattered": n} for n in (1, 3, 64)),
    ],
    "mla/gluon_bf16": [{"short": False}],
    "mla/gluon_fp8": [{"short": False}],
}
"""Further options of `launch`, beyond its own choice. They run with the first two shapes."""


def names() -> list[str]:
    """All bundled files with their own kernels for NVIDIA's GPUs."""
    files = sorted((ROOT / "submissions").glob("*/*.py"))
    others = ("torch_", "aiter_", "hip_mfma")
    mine = [f"{file.parent.name}/{file.stem}" for file in files if not file.stem.startswith(others)]
    return [name for name in mine if name.partition("/")[0] in SHAPES]


def main() -> None:
    for name in sys.argv[1:] or names():
        problem = name.partition("/")[0]
        reference, _ = load_problem(problem)
        module = load(ROOT / "submissions" / f"{name}.py")
        for number, shape in enumerate(SHAPES[problem]):
            data = reference.generate_input(**shape, seed=1, device="cpu")
            expected = expectation(problem, reference, data)
            for options in [{}, *(OPTIONS.get(name, []) if number < 2 else [])]:
                got = prepared(module, moved(data, "cuda"), options)()
                torch.cuda.synchronize()
                error = wrongness(moved(got, "cpu"), expected)
                print(name, shape, options, f"relative L2 error {error:.2g}", flush=True)
                if not error <= 2 * REL_L2.get(name, REL_L2[problem]):  # with few keys each counts for more
                    raise ValueError(f"{name} is wrong on {shape} with {options}: relative L2 error {error:.2g}")


def moved(x: Any, device: str) -> Any:
    """A copy of all tensors on `device`."""
    if torch.is_tensor(x):
        return torch.empty_like(x, device=device).copy_(x)
    if isinstance(x, tuple):
        return tuple(moved(each, device) for each in x)
    return {key: moved(each, device) for key, each in x.items()} if isinstance(x, dict) else x


if __name__ == "__main__":
    main()

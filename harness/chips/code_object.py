"""The chip resources that a compiled kernel uses, read from the compiler's output.

    AMD assembly           metadata: registers, spills, scratch, LDS       body: matrix instructions
    `ptxas -v` and PTX     log: registers, spills, stack, shared memory    body: matrix instructions

Kernels in HIP and in Triton give the same record. Triton's shared memory is dynamic, so the code does not state it and
the caller passes it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from harness.chips.targets import TARGETS, Occupancy, occupancy

_DEFAULT_THREADS = 1024
"""The largest possible block, for a kernel that does not state its own."""


END_OF_FUNCTION = r"^\s*(?:\.(?:visible|weak|extern)\s+)*\.(?:entry|func)\b|\Z"
"""The beginning of PTX's next function. A closing brace on its own line would not do: it may end a block of inline
assembly."""


@dataclass(frozen=True)
class KernelReport:
    """The resources of one kernel. Registers are counted per thread, SGPRs per wave. AGPRs and SGPRs are 0 on NVIDIA.

    registers: on AMD, VGPRs and AGPRs together if they share a file, else the larger count; on NVIDIA, registers.
    vgprs: AMD's VGPRs without the AGPRs. spills: registers on AMD, bytes of spill stores and loads on NVIDIA.
    scratch_bytes: private memory per thread. lds_bytes: shared memory per block. lds_limit: the most that the target
    grants. threads: the largest block that the kernel was compiled for. matrix_instructions: how often each occurs in
    the code. over_limit: a sentence, or None. parameters: the bytes of each.
    cluster: the blocks of a cluster that the code states, in x, y, z.
    """

    name: str
    registers: int
    vgprs: int
    agprs: int
    sgprs: int
    spills: int
    scratch_bytes: int
    lds_bytes: int
    lds_limit: int
    threads: int
    matrix_instructions: dict[str, int]
    occupancy: Occupancy
    over_limit: str | None
    parameters: tuple[int, ...] = ()
    cluster: tuple[int, ...] = (1, 1, 1)


def amd_kernels(assembly: str, target: str, dynamic_lds_bytes: int = 0) -> tuple[KernelReport, ...]:
    """The kernels of an AMD assembly file, from its metadata (LLVM's AMDGPU usage guide, "Code Object Metadata")."""
    metadata = re.search(r"\.amdgpu_metadata\n---\n(.*?)\n\.\.\.", assembly, re.DOTALL)
    kernels = yaml.safe_load(metadata[1])["amdhsa.kernels"] if metadata else []
    return _by_name(
        _kernel(
            target,
            name=kernel[".name"],
            registers=kernel[".vgpr_count"],
            vgprs=_vgprs(kernel, assembly, target),
            agprs=kernel.get(".agpr_count", 0),
            sgprs=kernel[".sgpr_count"],
            spills=kernel.get(".vgpr_spill_count", 0) + kernel.get(".sgpr_spill_count", 0),
            scratch_bytes=kernel[".private_segment_fixed_size"],
            lds_bytes=kernel[".group_segment_fixed_size"] + dynamic_lds_bytes,
            threads=kernel.get(".max_flat_workgroup_size", _DEFAULT_THREADS),
            code=body(assembly, rf"^{re.escape(kernel['.name'])}:", r"^\.Lfunc_end"),
            matrix=r"^\s+(v_s?mfmac?_\w+|v_s?wmmac?_\w+)",
            parameters=tuple(one[".size"] for one in kernel.get(".args", ()) if "hidden" not in one[".value_kind"]),
        )
        for kernel in kernels
    )


def nvidia_kernels(log: str, ptx: str, target: str, dynamic_lds_bytes: int = 0) -> tuple[KernelReport, ...]:
    """The kernels in the log of `ptxas -v`."""
    parts = re.split(r"Compiling entry function '(\w+)'", log)
    return _by_name(
        _kernel(
            target,
            name=name,
            registers=_number(r"Used (\d+) registers", said),
            vgprs=0,
            agprs=0,
            sgprs=0,
            spills=_number(r"(\d+) bytes spill stores", said) + _number(r"(\d+) bytes spill loads", said),
            scratch_bytes=_number(r"(\d+) bytes stack frame", said),
            lds_bytes=_number(r"(\d+) bytes smem", said) + dynamic_lds_bytes,
            threads=_threads(code := body(ptx, rf"\.entry {re.escape(name)}\(", END_OF_FUNCTION)),
            code=code,
            matrix=r"^\s*(?:@\S+\s+)?((?:wg)?mma\.(?:mma_async|sync)\.[\w.]+)",
            parameters=_parameters(code),
            cluster=_cluster(code),
        )
        for name, said in zip(parts[1::2], parts[2::2])
    )


def _by_name(kernels: Iterable[KernelReport]) -> tuple[KernelReport, ...]:
    return tuple(sorted(kernels, key=lambda kernel: kernel.name))


def _kernel(
    target: str, *, registers: int, sgprs: int, lds_bytes: int, threads: int, code: str, matrix: str, **other: Any
) -> KernelReport:
    limit = TARGETS[target].lds_bytes
    over = f"{lds_bytes} bytes of shared memory, over the {limit} of {target}" if lds_bytes > limit else None
    return KernelReport(
        registers=registers,
        sgprs=sgprs,
        lds_bytes=lds_bytes,
        lds_limit=limit,
        threads=threads,
        matrix_instructions=dict(Counter(re.findall(matrix, code, re.MULTILINE))),
        occupancy=occupancy(target, registers=registers, sgprs=sgprs, lds_bytes=lds_bytes, threads=threads),
        over_limit=over,
        **other,
    )


def _vgprs(kernel: dict[str, Any], assembly: str, target: str) -> int:
    """A kernel's architectural VGPRs. The metadata gives them together with the AGPRs, as a sum or as the larger
    count."""
    both: int = kernel[".vgpr_count"]
    if not TARGETS[target].separate_agprs:
        return both - int(kernel.get(".agpr_count", 0))
    stated = re.search(rf"^\s*\.set {re.escape(kernel['.name'])}\.num_vgpr, (\d+)$", assembly, re.MULTILINE)
    return int(stated[1]) if stated else both


def _threads(entry: str) -> int:
    """The largest block that a PTX entry is compiled for: the product of its .reqntid or .maxntid, up to three
    factors."""
    stated = re.search(r"\.(?:req|max)ntid ([\d, ]+)", entry)
    if not stated:
        return _DEFAULT_THREADS
    product = 1
    for factor in stated[1].split(","):
        product *= int(factor)
    return product


def _parameters(entry: str) -> tuple[int, ...]:
    """The bytes of each parameter of a PTX entry, of which each has a line."""
    stated = re.findall(r"^\s*\.param\b.*?\.[usbf](\d+)\b[^\[\n]*(?:\[(\d+)\])?,?$", entry, re.MULTILINE)
    return tuple(int(bits) // 8 * int(count or 1) for bits, count in stated)


def _cluster(entry: str) -> tuple[int, ...]:
    """The blocks of a cluster of a PTX entry, in x, y, z."""
    stated = re.search(r"\.reqnctapercluster ([\d, ]+)", entry)
    sizes = [int(size) for size in stated[1].split(",")] if stated else []
    return (*sizes, 1, 1, 1)[:3]


def body(code: str, start: str, end: str) -> str:
    found = re.search(rf"{start}.*?(?:{end})", code, re.DOTALL | re.MULTILINE)
    return found[0] if found else ""


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0

"""Small code objects for the emulator's tests, from assembly, with the assembler and linker that Triton brings."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

BEGIN = """
    s_load_dwordx8 s[4:11], s[0:1], 0x0
    s_lshl_b32 s2, s2, 6
    s_waitcnt lgkmcnt(0)
    v_add_u32_e32 v1, s2, v0
    v_lshlrev_b32_e32 v1, 2, v1
    global_load_dword v2, v1, s[4:5]
    global_load_dword v3, v1, s[6:7]
    global_load_dword v4, v1, s[8:9]
    s_waitcnt vmcnt(0)
"""
END = """
    global_store_dword v1, v5, s[10:11]
    s_endpgm
"""
"""The lines around one instruction: v2, v3 and v4 are a lane's inputs, v5 its output, v1 its byte offset."""

TEXT = """
    .amdgcn_target "amdgcn-amd-amdhsa--{target}"
    .text
    .globl probe
    .p2align 8
    .type probe,@function
probe:
{body}
.Lfunc_end0:
    .size probe, .Lfunc_end0-probe
    .section .rodata,"a",@progbits
    .p2align 6
    .amdhsa_kernel probe
        .amdhsa_group_segment_fixed_size {lds}
        .amdhsa_private_segment_fixed_size {scratch}
        .amdhsa_enable_private_segment {uses_scratch}
        .amdhsa_kernarg_size 32
        .amdhsa_user_sgpr_count 2
        .amdhsa_user_sgpr_kernarg_segment_ptr 1
        .amdhsa_next_free_vgpr {registers}
        .amdhsa_next_free_sgpr 40
        {waves}
        .amdhsa_float_denorm_mode_32 3
    .end_amdhsa_kernel
    .text
    .amdgpu_metadata
---
amdhsa.kernels:
  - .args:
      - {{.address_space: global, .offset: 0, .size: 8, .value_kind: global_buffer}}
      - {{.address_space: global, .offset: 8, .size: 8, .value_kind: global_buffer}}
      - {{.address_space: global, .offset: 16, .size: 8, .value_kind: global_buffer}}
      - {{.address_space: global, .offset: 24, .size: 8, .value_kind: global_buffer}}
    .group_segment_fixed_size: {lds}
    .kernarg_segment_align: 8
    .kernarg_segment_size: 32
    .max_flat_workgroup_size: 1024
    .name: probe
    .private_segment_fixed_size: {scratch}
    .sgpr_count: 46
    .symbol: probe.kd
    .vgpr_count: {vgprs}
    .wavefront_size: {lanes}
amdhsa.target: amdgcn-amd-amdhsa--{target}
amdhsa.version: [1, 2]
...
    .end_amdgpu_metadata
"""


@functools.cache
def code_object(
    body: str, lds: int = 0, vgprs: int = 64, scratch: int = 0, target: str = "gfx942", agprs: int = 0
) -> tuple[bytes, str]:
    """A kernel `probe` with four pointers, and its assembly."""
    from triton._C.libtriton import amd, llvm

    llvm.init_targets()
    lanes = 32 if target == "gfx1100" else 64
    waves = ".amdhsa_wavefront_size32 1" if lanes == 32 else f".amdhsa_accum_offset {vgprs}"
    text = TEXT.format(
        body=body, lds=lds, vgprs=vgprs, scratch=scratch, uses_scratch=int(scratch > 0), target=target, waves=waves,
        lanes=lanes, registers=vgprs + agprs,
    )  # fmt: skip
    if target == "gfx1100":
        text = text.replace("        .amdhsa_enable_private_segment 0\n", "")
    with tempfile.TemporaryDirectory() as folder:
        part, whole = Path(folder) / "probe.o", Path(folder) / "probe.hsaco"
        part.write_bytes(amd.assemble_amdgcn(text, target, ""))
        amd.link_hsaco(str(part), str(whole))
        return whole.read_bytes(), re.sub(r"^    (?=[sv]_|ds_|global_|buffer_|flat_|scratch_)", "\t", text, flags=re.M)


def refused(lines: Sequence[str], target: str) -> dict[str, str]:
    """The messages of LLVM's assembler for the lines that it refuses for a chip."""
    from triton._C.libtriton import amd, llvm

    llvm.init_targets()
    text = "\n".join([f'.amdgcn_target "amdgcn-amd-amdhsa--{target}"', *lines, ""])
    with tempfile.TemporaryFile() as said:
        kept = os.dup(2)  # LLVM writes its messages there and goes on
        os.dup2(said.fileno(), 2)
        try:
            amd.assemble_amdgcn(text, target, "")
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        said.seek(0)
        return {line.strip(): error for error, line in re.findall(r"error: (.*)\n(.*)\n", said.read().decode())}


def launched(
    body: str,
    arrays: list[np.ndarray],
    grid: int = 1,
    block: int = 64,
    lds: int = 0,
    scratch: int = 0,
    target: str = "gfx942",
    agprs: int = 0,
    **options: object,
):
    """Run `probe` on four arrays, whose allocations are called a, b, c and out."""
    from harness.emulator import of_array, run

    image, assembly = code_object(body, lds, scratch=scratch, target=target, agprs=agprs)
    memory = [of_array(array, name) for array, name in zip(arrays, ("a", "b", "c", "out"))]
    pointers = [array.ctypes.data.to_bytes(8, "little") for array in arrays]
    return run(image, "probe", (grid, 1, 1), (block, 1, 1), pointers, memory, assembly=assembly, **options)


def computed(instruction: str, a: np.ndarray, b: np.ndarray | None = None, c: np.ndarray | None = None) -> np.ndarray:
    """The value of v5 after instructions on v2, v3 and v4, for uint32 inputs. Their number must be a multiple of 64."""
    given = [np.ascontiguousarray(one if one is not None else a, np.uint32) for one in (a, b, c)]
    out = np.zeros_like(given[0])
    outcome = launched(BEGIN + instruction + END, [*given, out], grid=out.size // 64)
    assert outcome.clean, outcome
    return out

"""The chips that Podium compiles for: the resources that a kernel may use, and the properties that host code sees.

The table gives the resources of one multiprocessor (AMD's CU, RDNA's pair of CUs, NVIDIA's SM), which its waves
(NVIDIA: warps) share:

               SIMDs   waves a SIMD   registers a lane   shared memory   a block's
    gfx908         4             10     256, by the 4           64 KiB      64 KiB
    gfx90a         4              8     512, by the 8           64 KiB      64 KiB
    gfx942         4              8     512, by the 8           64 KiB      64 KiB
    gfx950         4              8     512, by the 8          160 KiB     160 KiB
    gfx1100        4             16    1536, by the 24         128 KiB      64 KiB
    sm_90          4             16     512, by the 8          228 KiB     227 KiB, and 1 more that the system keeps

Sources
    gfx908           AMD Instinct MI100 (CDNA1) ISA guide and LLVM as below: a wave has up to 256 architectural VGPRs
                     and 256 AGPRs (for accumulation), in separate files; the larger count limits the waves.
    gfx90a           AMD Instinct MI200 (CDNA2) ISA guide and LLVM as below: one file for both kinds, as on gfx942.
    gfx942, gfx950   AMD Instinct MI300 and CDNA4 ISA guides, 1.2 and 3.6 (512 VGPRs a lane, VGPRs and AGPRs
                     in one file; 64 and 160 KiB of LDS a CU). Allocation granules, 800 SGPRs a SIMD
                     and 8 waves: LLVM, AMDGPUBaseInfo.cpp, `IsaInfo` and `getLdsDwGranularity`.
    gfx1100          RDNA3 ISA guide, 2.3 and 3.3 (128 KiB of LDS a WGP, 64 a work-group), and LLVM as above: 1536 VGPRs
                     for waves of 32. Kernels run in WGP mode unless compiled for CU mode, which Triton does not.
    sm_90            CUDA programming guide, "Technical specifications per compute capability": 65536 registers, 64
                     warps and 32 blocks an SM; a warp's registers are allocated by the 256 and warps go to four
                     partitions, so that a lane has 65536 / 4 / 32 registers.
    devices          MI100, MI250X (one of its two dies, as HIP shows it), MI300X, MI355X, Radeon RX 7900 XTX, H100 SXM:
                     the vendors' datasheets. HIP counts the WGPs of an RDNA card, 48 for 96 CUs, as its
                     multiprocessors.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A chip to compile for.

    lds_bytes: the most shared memory that a block can have. separate_agprs: registers for accumulation have a file of
    their own. capability, multiprocessors, memory_bytes, l2_bytes, device, features: what the card tells host code; the
    last stands behind the chip's name (LLVM's AMDGPU usage guide, "Target ID").
    """

    vendor: str
    backend: str
    arch: str | int
    warp_size: int
    lds_bytes: int
    lds_per_multiprocessor: int
    lds_granule: int
    lds_reserved: int
    waves_per_simd: int
    registers: int
    register_granule: int
    sgprs: int | None
    blocks: int | None
    device: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    l2_bytes: int
    simds: int = 4
    sgpr_granule: int = 16
    separate_agprs: bool = False
    features: str = ""

    @property
    def gcn_arch(self) -> str:
        """What torch calls the chip, on AMD."""
        return f"{self.arch}{self.features}" if self.vendor == "amd" else ""


@dataclass(frozen=True)
class Occupancy:
    """How many waves are resident on a SIMD (on NVIDIA: warps on an SM) if there are enough blocks to fill the chip.

    waves_per_simd: a fraction if a block has fewer waves than there are SIMDs. of: the most that the chip can hold.
    limited_by: "VGPRs", "SGPRs", "registers", "LDS", "shared memory" or "blocks"; "waves" if only the chip's own
    maximum limits it, or a block size that does not divide the maximum.
    """

    waves_per_simd: float
    of: int
    limited_by: str


SWITCHED = ":sramecc+:xnack-"
"""Of chips that have these features to switch."""

TARGETS = {
    "gfx942": Target(
        vendor="amd",
        backend="hip",
        arch="gfx942",
        warp_size=64,
        lds_bytes=64 << 10,
        lds_per_multiprocessor=64 << 10,
        lds_granule=512,
        lds_reserved=0,
        waves_per_simd=8,
        registers=512,
        register_granule=8,
        sgprs=800,
        blocks=None,
        device="AMD Instinct MI300X",
        capability=(9, 4),
        multiprocessors=304,
        memory_bytes=192 << 30,
        l2_bytes=4 << 20,
        features=SWITCHED,
    ),
    "gfx950": Target(
        vendor="amd",
        backend="hip",
        arch="gfx950",
        warp_size=64,
        lds_bytes=160 << 10,
        lds_per_multiprocessor=160 << 10,
        lds_granule=1280,
        lds_reserved=0,
        waves_per_simd=8,
        registers=512,
        register_granule=8,
        sgprs=800,
        blocks=None,
        device="AMD Instinct MI355X",
        capability=(9, 5),
        multiprocessors=256,
        memory_bytes=288 << 30,
        l2_bytes=4 << 20,
        features=SWITCHED,
    ),
    "gfx1100": Target(
        vendor="amd",
        backend="hip",
        arch="gfx1100",
        warp_size=32,
        lds_bytes=64 << 10,
        lds_per_multiprocessor=128 << 10,
        lds_granule=1024,
        lds_reserved=0,
        waves_per_simd=16,
        registers=1536,
        register_granule=24,
        sgprs=None,
        blocks=None,
        device="AMD Radeon RX 7900 XTX",
        capability=(11, 0),
        multiprocessors=48,
        memory_bytes=24 << 30,
        l2_bytes=6 << 20,
    ),
    "sm_90": Target(
        vendor="nvidia",
        backend="cuda",
        arch=90,
        warp_size=32,
        lds_bytes=227 << 10,
        lds_per_multiprocessor=228 << 10,
        lds_granule=128,
        lds_reserved=1024,
        waves_per_simd=16,
        registers=512,
        register_granule=8,
        sgprs=None,
        blocks=32,
        device="NVIDIA H100 80GB HBM3",
        capability=(9, 0),
        multiprocessors=132,
        memory_bytes=80 << 30,
        l2_bytes=50 << 20,
    ),
    "gfx908": Target(
        vendor="amd",
        backend="hip",
        arch="gfx908",
        warp_size=64,
        lds_bytes=64 << 10,
        lds_per_multiprocessor=64 << 10,
        lds_granule=512,
        lds_reserved=0,
        waves_per_simd=10,
        registers=256,
        register_granule=4,
        sgprs=800,
        blocks=None,
        device="AMD Instinct MI100",
        capability=(9, 0),
        multiprocessors=120,
        memory_bytes=32 << 30,
        l2_bytes=8 << 20,
        separate_agprs=True,
        features=SWITCHED,
    ),
    "gfx90a": Target(
        vendor="amd",
        backend="hip",
        arch="gfx90a",
        warp_size=64,
        lds_bytes=64 << 10,
        lds_per_multiprocessor=64 << 10,
        lds_granule=512,
        lds_reserved=0,
        waves_per_simd=8,
        registers=512,
        register_granule=8,
        sgprs=800,
        blocks=None,
        device="AMD Instinct MI250X",
        capability=(9, 0),
        multiprocessors=110,
        memory_bytes=64 << 30,
        l2_bytes=8 << 20,
        features=SWITCHED,
    ),
}

DEFAULT_TARGETS = ("gfx942", "gfx950", "gfx1100", "sm_90")
"""The targets if the user names none. The other targets are older chips, compiled for on request."""


EMULATED_TARGETS = ("gfx942", "gfx950", "gfx1100")
"""The chips that `harness.emulator` knows."""

EMULATED_TARGET = "gfx942"
"""The chip that inline HIP is emulated for if there is no GPU and the user names no chip."""


def occupancy(target: str, *, registers: int, lds_bytes: int, threads: int, sgprs: int = 0) -> Occupancy:
    """The occupancy of a kernel with blocks of `threads` threads.

    registers: per lane. On AMD with the AGPRs; where these are separate, the larger count. lds_bytes: shared memory per
    block, static and dynamic.
    """
    chip = TARGETS[target]
    amd = chip.vendor == "amd"
    waves = -(-threads // chip.warp_size)
    # Blocks that a multiprocessor can hold, by resource. On a tie the first resource is named: more registers or shared
    # memory would not help a kernel that fills the chip.
    blocks = {"waves": chip.simds * chip.waves_per_simd // waves}
    if chip.blocks is not None:
        blocks["blocks"] = chip.blocks
    if registers:
        by_registers = chip.simds * (chip.registers // _rounded(registers, chip.register_granule))
        blocks["VGPRs" if amd else "registers"] = by_registers // waves
    if chip.sgprs is not None and sgprs:
        blocks["SGPRs"] = chip.simds * (chip.sgprs // _rounded(sgprs, chip.sgpr_granule)) // waves
    if taken := _rounded(lds_bytes + chip.lds_reserved, chip.lds_granule):
        blocks["LDS" if amd else "shared memory"] = chip.lds_per_multiprocessor // taken
    limited_by = min(blocks, key=lambda resource: blocks[resource])
    resident = blocks[limited_by] * waves
    if not amd:
        return Occupancy(resident, chip.simds * chip.waves_per_simd, limited_by)
    return Occupancy(resident / chip.simds, chip.waves_per_simd, limited_by)


def _rounded(amount: int, granule: int) -> int:
    return -(-amount // granule) * granule

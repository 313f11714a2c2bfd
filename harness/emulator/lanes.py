"""Instructions that read other lanes: DPP, v_readlane, ds_bpermute, ds_swizzle, permlane swaps.

All of them read all their inputs before they write.
"""

from __future__ import annotations

import functools

import numpy as np

from harness.emulator.arithmetic import U32, Array
from harness.emulator.decoding import Instruction
from harness.emulator.findings import NotEmulated
from harness.emulator.state import Rows, State


@functools.cache
def dpp_lanes(control: int, wave_size: int, rdna: bool) -> tuple[Array, Array]:
    """For each lane: the lane that it reads, and whether that lane exists (CDNA3 ISA guide, "DPP_CTRL")."""
    lane = np.arange(wave_size)
    row, within = lane // 16 * 16, lane % 16
    valid = np.ones(wave_size, np.bool_)
    if control <= 0xFF:
        choice = np.array([control >> 2 * place & 3 for place in range(4)])
        source = lane // 4 * 4 + choice[lane % 4]
    elif 0x101 <= control <= 0x10F:
        source, valid = lane + (control & 15), within + (control & 15) < 16
    elif 0x111 <= control <= 0x11F:
        source, valid = lane - (control & 15), within >= (control & 15)
    elif 0x121 <= control <= 0x12F:
        source = row + (within - (control & 15)) % 16
    elif control == 0x140:
        source = row + 15 - within
    elif control == 0x141:
        source = lane // 8 * 8 + 7 - lane % 8
    elif 0x150 <= control <= 0x15F:
        source = row + (control & 15)
    elif 0x160 <= control <= 0x16F and rdna:
        source = row + (within ^ (control & 15))
    elif control in (0x130, 0x138) and not rdna:
        step = 1 if control == 0x130 else -1
        source = lane + step
        valid = (source >= 0) & (source < wave_size)
    elif control in (0x134, 0x13C) and not rdna:
        source = (lane + (1 if control == 0x134 else -1)) % wave_size
    elif control == 0x142 and not rdna:
        source, valid = row - 1, row > 0
    elif control == 0x143 and not rdna:
        source, valid = np.full(wave_size, 31), lane >= 32
    else:
        raise NotEmulated(f"the DPP control 0x{control:x}")
    return np.where(valid, source, 0), valid


def enabled_by_masks(row_mask: int, bank_mask: int, wave_size: int) -> Array:
    """The lanes that DPP's row and bank masks allow to write."""
    lane = np.arange(wave_size)
    return ((row_mask >> lane // 16 & 1) & (bank_mask >> lane % 16 // 4 & 1)).astype(np.bool_)


def first_active(state: State, rows: Rows) -> Array:
    """The lowest active lane of each wave. 0 if none is active."""
    return np.argmax(state.lanes[rows], axis=1)


def of_lane(values: Array, lane: Array) -> Array:
    """values[wave, lane[wave]]."""
    return values[np.arange(values.shape[0]), lane]


def bpermute(address: Array, data: Array, active: Array, offset: int) -> Array:
    """ds_bpermute_b32: each lane reads the data of lane address / 4. An inactive lane gives 0."""
    lane = ((address + U32(offset)) >> U32(2)) % U32(data.shape[1])
    return np.take_along_axis(np.where(active, data, U32(0)), lane.astype(np.int64), axis=1)


def permute(address: Array, data: Array, active: Array, offset: int) -> Array:
    """ds_permute_b32: each active lane sends its data to lane address / 4. The highest sender wins; lanes without a
    sender get 0."""
    result = np.zeros_like(data)
    lane = (((address + U32(offset)) >> U32(2)) % U32(data.shape[1])).astype(np.int64)
    waves = np.arange(data.shape[0])
    for sender in range(data.shape[1]):
        here = active[:, sender]
        result[waves[here], lane[here, sender]] = data[here, sender]
    return result


def swizzle_lanes(offset: int, wave_size: int) -> Array:
    """The source lane of each lane for ds_swizzle_b32 (CDNA3 ISA guide, "DS_SWIZZLE_B32"): quads, or masks within 32
    lanes."""
    lane = np.arange(wave_size)
    if offset >= 0xE000:
        raise NotEmulated(f"the swizzle 0x{offset:x}")
    if offset & 0x8000:
        choice = np.array([offset >> 2 * place & 3 for place in range(4)])
        return lane // 4 * 4 + choice[lane % 4]
    and_mask, or_mask, xor_mask = offset & 31, offset >> 5 & 31, offset >> 10 & 31
    return lane // 32 * 32 + (((lane % 32) & and_mask | or_mask) ^ xor_mask)


def swap(first: Array, second: Array, width: int) -> tuple[Array, Array]:
    """v_permlane16_swap and v_permlane32_swap: exchange the odd groups of the first with the even groups of the second
    (CDNA4 ISA guide)."""
    groups = first.shape[1] // width
    a = first.reshape(first.shape[0], groups, width).copy()
    b = second.reshape(second.shape[0], groups, width).copy()
    odd = a[:, 1::2].copy()
    a[:, 1::2] = b[:, 0::2]
    b[:, 0::2] = odd
    return a.reshape(first.shape), b.reshape(second.shape)


def check_mask_bits(instruction: Instruction) -> None:
    """Raise NotEmulated for forms of DPP that are not emulated."""
    if "DPP8" in instruction.encoding:
        raise NotEmulated(f"{instruction.mnemonic} with DPP8 is not emulated")

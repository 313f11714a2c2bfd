"""Triton: K and V in one launch; every word is read once and stored for each copy.

Idea. Heads are the last axis but one, so the G copies of a KV row are G neighbouring rows of the output: one run of
memory. A program keeps a tile of rows in registers and stores it once for each copy.

Words. The tensors are seen as integers: exact for NaNs of every payload, and one kernel for all dtypes. What makes the
kernel fast is that words are wide and that the compiler can prove that they are aligned, so a row's length is a
compile-time constant:

  rows of whole 4-byte words    a word is 4 bytes; where a row is a multiple of 4 words, a thread moves 16 bytes at once
  16-bit rows of odd length     two neighbouring copies x x are whole words, (x0 x1) .. (x126 x0) .. (x125 x126): a tile
                                holds that pair of copies, each word put together from two elements when it is loaded,
                                and is stored G / 2 times
  the same where G is odd       a word is 2 bytes

Tile. Whole rows, padded to a power of two in registers only: 1 KiB a program, of K or of V. So little because many
small programs keep more stores in flight than a few large ones, and because the seed's case has only 2 MiB of K; K and
V apart, because a program that alternates between two outputs was slower. Stores are marked as streaming (.cs), which
saves half a percent; tensor descriptors (TMA) lose 6 and more, and one store for several copies gains nothing. Row
numbers are int64: outputs pass 2^31 elements.

Bytes an input element: 2 e (1 + G), the least possible. Limited by the bandwidth of stores.

Measured on an NVIDIA H200, 2026-11-20 (docs/kernels.md has every case): 84 %
of the floor, the geometric mean of the three cases with a floor above 20 µs (83 to 85 %), and 77 and 78 % for the
seed's two cases.
"""

import torch
import triton
import triton.language as tl

TILE_BYTES = 1024


@triton.jit
def replicate_rows(
    k_ptr,  # integers [rows, LENGTH]
    v_ptr,
    k_out_ptr,  # words [rows, COPIES, LENGTH]
    v_out_ptr,
    rows,
    LENGTH: tl.constexpr,  # of a row of the output, in words; a row of the input is as long in its own integers
    COPIES: tl.constexpr,
    PAIRED: tl.constexpr,  # a row of the output is two copies of one of the input, in words of two integers
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,  # LENGTH, rounded up to a power of two
    CACHE: tl.constexpr,
):
    """Grid (tiles of rows, 2): K, then V."""
    if tl.program_id(1) == 0:
        replicate_tile(k_ptr, k_out_ptr, rows, LENGTH, COPIES, PAIRED, ROWS, COLUMNS, CACHE)
    else:
        replicate_tile(v_ptr, v_out_ptr, rows, LENGTH, COPIES, PAIRED, ROWS, COLUMNS, CACHE)


@triton.jit
def replicate_tile(
    ptr,
    out_ptr,
    rows,
    LENGTH: tl.constexpr,
    COPIES: tl.constexpr,
    PAIRED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    CACHE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside = (row < rows) & (column < LENGTH)
    row_ptr = ptr + row * LENGTH
    if PAIRED:
        low = 2 * column
        high = low + 1
        first = tl.load(row_ptr + tl.where(low < LENGTH, low, low - LENGTH), mask=inside).to(tl.int32)
        second = tl.load(row_ptr + tl.where(high < LENGTH, high, high - LENGTH), mask=inside).to(tl.int32)
        words = (first & 0xFFFF) | (second << 16)
    else:
        words = tl.load(row_ptr + column, mask=inside)
    for copy in range(COPIES):
        place = out_ptr + (row * COPIES + copy) * LENGTH + column
        tl.store(place, words, mask=inside, cache_modifier=CACHE)


def custom_kernel(data):
    return launch(data)


def launch(data, tile_bytes=TILE_BYTES, num_warps=4, cache=".cs"):
    """What `custom_kernel` does, with other choices than its own, for tuning."""
    k, v, k_out, v_out, config = data
    copies = config["num_q_heads"] // config["num_kv_heads"]
    whole = k.shape[3] * k.itemsize % 4 == 0
    paired = not whole and copies % 2 == 0
    if paired:
        copies //= 2
    source_word = torch.int32 if whole else torch.int16
    target_word = torch.int32 if whole or paired else torch.int16
    source = k.view(source_word)
    length = source.shape[3]
    rows = source.numel() // length
    columns = triton.next_power_of_2(length)
    rows_per_program = max(tile_bytes // target_word.itemsize // columns, 1)
    replicate_rows[(triton.cdiv(rows, rows_per_program), 2)](
        source,
        v.view(source_word),
        k_out.view(-1).view(target_word),
        v_out.view(-1).view(target_word),
        rows,
        LENGTH=length,
        COPIES=copies,
        PAIRED=paired,
        ROWS=rows_per_program,
        COLUMNS=columns,
        CACHE=cache,
        num_warps=num_warps,
    )
    return k_out, v_out

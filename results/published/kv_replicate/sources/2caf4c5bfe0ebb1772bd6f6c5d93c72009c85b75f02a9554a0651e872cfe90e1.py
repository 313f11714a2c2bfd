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
V apart, so that a program does not alternate between two outputs. Stores are marked as streaming (.cs). Row numbers are
int64: outputs pass 2^31 elements.

Bursts. DRAM loses time at each turn from reading to writing and back. So on Hopper the input comes in bursts: of the
programs that store 3 MiB of K or V, the first quarter asks for the 3 MiB after these to be brought to the L2 cache
(cp.async.bulk.prefetch, one instruction for 16 rows), and then a while nothing but stores goes to DRAM. Of larger
bursts the lines are replaced before they are read. The seed's two cases, of 2 MiB, are no more than one burst.

Bytes an input element: 2 e (1 + G), the least possible. Limited by the bandwidth of stores. docs/kernels.md has what
was measured, docs/kernels-tried.md what was slower.
"""

import torch
import triton
import triton.language as tl

TILE_BYTES = 1024
BURST_BYTES = 3 << 20
BURST_ROWS = tl.constexpr(16)  # that one program asks for: whole 16-byte words, whatever a row's length


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
    BURST: tl.constexpr,  # programs whose rows are brought to the cache at once; 0: each loads its own
    CACHE: tl.constexpr,
):
    """Grid (tiles of rows, 2): K, then V."""
    if tl.program_id(1) == 0:
        replicate_tile(k_ptr, k_out_ptr, rows, LENGTH, COPIES, PAIRED, ROWS, COLUMNS, BURST, CACHE)
    else:
        replicate_tile(v_ptr, v_out_ptr, rows, LENGTH, COPIES, PAIRED, ROWS, COLUMNS, BURST, CACHE)


@triton.jit
def bring_to_cache(ptr, BYTES: tl.constexpr):
    """One thread of the program asks for it."""
    tl.inline_asm_elementwise(
        """{ .reg .pred first; .reg .u32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0;
        @first cp.async.bulk.prefetch.L2.global [$1], $2; mov.b32 $0, 0; }""",
        "=r,l,r", [ptr.to(tl.int64), BYTES], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


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
    BURST: tl.constexpr,
    CACHE: tl.constexpr,
):
    if BURST > 0:
        if tl.program_id(0) % BURST < BURST * ROWS // BURST_ROWS:
            next_burst = (tl.program_id(0) // BURST + 1).to(tl.int64) * (BURST * ROWS)
            asked = next_burst + tl.program_id(0) % BURST * BURST_ROWS
            if asked + BURST_ROWS <= rows:
                bring_to_cache(ptr + asked * LENGTH, BURST_ROWS * LENGTH * ptr.dtype.element_ty.itemsize)
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


def launch(data, tile_bytes=TILE_BYTES, num_warps=4, cache=".cs", burst_bytes=BURST_BYTES):
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
    burst = programs_of_a_burst(burst_bytes, rows_per_program, length * source.itemsize) if takes_bursts(k, v) else 0
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
        BURST=burst,
        CACHE=cache,
        num_warps=num_warps,
    )
    return k_out, v_out


def programs_of_a_burst(burst_bytes, rows_per_program, row_bytes):
    """Whole requests, so that each begins at a 16-byte word, whatever a row's length."""
    programs_of_a_request = max(BURST_ROWS.value // rows_per_program, 1)
    programs = burst_bytes // (rows_per_program * row_bytes)
    return programs - programs % programs_of_a_request


def takes_bursts(*inputs):
    """Whether the device has the instruction, and the inputs lie where it may be used."""
    if inputs[0].device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(inputs[0].device)[0] >= 9 and all(x.data_ptr() % 16 == 0 for x in inputs)

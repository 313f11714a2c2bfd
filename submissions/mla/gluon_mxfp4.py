"""MLA decode on the mxfp4 cache, for Hopper in Gluon: TMA brings tiles, fragments are decoded in registers.

Idea. As in triton_mxfp4.py: all 16 heads of a sequence in one program, scores S^T [tokens, heads] = K Q^T and output
O^T [dims, heads] = V^T P^T, no decoded key in memory; a sequence is cut into splits, and a second kernel merges them.
Both products take their decoded operand from registers, and each decodes for itself, in the cheapest way for it.

    keys      as e4m3, the type that also the queries are rounded to, by a scale a head. Of a word of eight codes the
              four low nibbles of its bytes become four e4m3 bytes by two shifts and two logical operations, the four
              high ones by one shift less: sign on sign, the three other bits on the lowest exponent bits and the
              highest mantissa bit, which reads as the value times 2^-6, E2M1's subnormal included. Even dims are the
              lower half of a product over 32 dims, odd dims the upper; the queries are stored in that order. 32 dims
              are a block of the cache, so a product has one scale a token, which is applied to its results in float32.
    values    as fp16. ldmatrix transposes 16-bit elements, here four neighbouring dims: a register gets these of tokens
              t and t + 1. As the keys' become e4m3, nibbles become the high bytes of fp16 numbers, four at a time; a
              permutation or a mask makes pairs (t, t + 1) of them, and one product of pairs applies the scales of the
              two tokens: 15 instructions for 8 values. One accumulator takes the even dims, one the odd ones: of 16
              tokens these are decoded while the product of those is under way, which takes no register more than not
              to overlap them does. (Whole products one ahead of the decoding: 32 registers more, which spill. Without
              anything that forces the order ptxas waits for a product before it decodes for the next.)
    scales    18 bytes a token are not aligned enough for TMA: threads load those of the next tile while the output is
              added up, and store them to shared memory as float32 for the scores and as fp16 for the values

Exact for the keys; for the values while a block's E8M0 byte is 112 to 136, that is for blocks whose largest magnitude
lies between 2^-13 and 3500. Values below are rounded to steps of 2^-16, scales above are taken as 2^9.

Tiles. 128 tokens, 36 KiB, two a program. A program is two warpgroups: for the scores each takes 64 of the tokens, for
the output each takes 256 of the dims with all tokens, so that 128 registers a thread suffice: two programs a
multiprocessor are sixteen warps. To spill is what costs most here: beside 224 KiB of shared memory the first-level
cache is too small for it, and a dozen reloads took a tenth of the time. Where two programs leave each fewer than 4
tiles, one a multiprocessor is faster: less to merge.

Bytes. 306 a token, and 64 KiB a (sequence, split) for the partial results.

Measured on an NVIDIA H200, 2026-11-21 (docs/kernels.md has every case): 1.06 to 1.14 times gluon_fp8.py's time, and a
third of triton_mxfp4.py's; at 256 x 8192 tokens 44 % of its own floor. What limits it is issuing instructions: 1,400 a
warp and 128 tokens, half of them to decode, at three quarters of the rate that the schedulers have. Only for Hopper
(sm_90): elsewhere see triton_mxfp4.py.
"""

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from harness.hip import NoDevice

HEADS, LATENT, ROPE = 16, 512, 64
BLOCK_N = 128  # tokens a tile: the M of a matrix instruction, for each of two warpgroups
TOKENS = gl.constexpr(16)  # of which values are decoded at a time
LEAST_TILES = 4  # a program, where two programs run on a multiprocessor
MAX_SPLITS = 64
MERGE_ELEMENTS = 2048  # of all splits together, a program
LOG2_E = 1.4426950408889634
VALUE_SHIFT = gl.constexpr(8)  # values are held as 2^-8 of themselves: fp16's range lies around 2^1 then
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # its name since Triton 3.7


@gluon.jit
def expect_tile(latent_desc, rope_desc, full, tile, tiles, STAGES: gl.constexpr):
    """Before a tile is asked for: how many bytes it has, if there is one."""
    mbarrier.expect(
        full.index(tile % STAGES), latent_desc.block_type.nbytes + rope_desc.block_type.nbytes, pred=tile < tiles
    )


@gluon.jit
def load_latent(latent_desc, ring, full, row, tile, tiles, STAGES: gl.constexpr):
    """Ask TMA for a tile's latent part, if there is one, into the place that it has in the ring."""
    slot = tile % STAGES
    tma.async_copy_global_to_shared(latent_desc, [row, 0], full.index(slot), ring.index(slot), tile < tiles)


@gluon.jit
def load_rope(rope_desc, latent_desc, rope_ring, full, row, tile, tiles, STAGES: gl.constexpr):
    """The same for its rope part."""
    slot = tile % STAGES
    place = [row, latent_desc.block_shape[1]]
    tma.async_copy_global_to_shared(rope_desc, place, full.index(slot), rope_ring.index(slot), tile < tiles)


@gluon.jit
def load_scales(pair_ptr, row, end, BLOCKS: gl.constexpr):
    """E8M0 bytes of 128 tokens, two in each of 8 int16 of the latent part, and the rope part's two in another one."""
    layout: gl.constexpr = gl.BlockedLayout([2, 2], [32, 1], [2, 4], [0, 1])
    rope_layout: gl.constexpr = gl.BlockedLayout([2], [32], [8], [0])
    token = row + gl.arange(0, 128, gl.SliceLayout(1, layout))
    pair = gl.arange(0, 8, gl.SliceLayout(0, layout))
    rope_token = row + gl.arange(0, 128, rope_layout)
    latent = gl.load(pair_ptr + (token * (BLOCKS // 2))[:, None] + pair[None, :], mask=(token < end)[:, None], other=0)
    rope = gl.load(pair_ptr + rope_token * (BLOCKS // 2) + 8, mask=rope_token < end, other=0)
    return latent, rope


@gluon.jit
def widened(pairs):
    """Of E8M0 bytes, two in an int16: fp16 2^(14 - VALUE_SHIFT + e8m0 - 127) of the first and of the second, exponents
    within 0..30, and float32 2^(e8m0 - 127) of both. Two tokens at a time, which a register holds."""
    return gl.inline_asm_elementwise(
        """
        {
            .reg .b32 first, second, t, least, most;
            mov.b32 least, 0x006A006A;
            mov.b32 most, 0x00880088;
            and.b32 first, $6, 0x00FF00FF;
            shr.u32 t, $6, 8;
            and.b32 second, t, 0x00FF00FF;
            shl.b32 $2, first, 23;
            shl.b32 t, first, 7;
            and.b32 $3, t, 0x7F800000;
            shl.b32 $4, second, 23;
            shl.b32 t, second, 7;
            and.b32 $5, t, 0x7F800000;
            max.u16x2 first, first, least;
            max.u16x2 second, second, least;
            min.u16x2 first, first, most;
            min.u16x2 second, second, most;
            mad.lo.u32 $0, first, 1024, 0x57FE5800;
            mad.lo.u32 $1, second, 1024, 0x57FE5800;
        }
        """,
        "=r,=r,=r,=r,=r,=r,r",
        [pairs],
        dtype=(gl.float16, gl.float16, gl.float32, gl.float32),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def store_scales(latent, rope, scales, rope_scales, value_scales):
    """Float32 for the scores, fp16 for the values."""
    first16, second16, first32, second32 = widened(latent)
    scales.store(gl.reshape(gl.join(first32, second32), [128, 16]))
    value_scales.store(gl.reshape(gl.join(first16, second16), [128, 16]))
    first16, second16, first32, second32 = widened(rope)
    rope_scales.store(gl.join(first32, second32))


@gluon.jit
def load_keys(key_panels, rope_codes, slot, BLOCK: gl.constexpr):
    """Codes of a tile and 32 dims, as the operand lies to which they decode. Blocks 0 and 1 are the rope part's."""
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0], [64, 0]], [], [128, 16]
    )
    if BLOCK < 2:
        return rope_codes.slice(BLOCK * 16, 16, 1).load(layout)
    else:
        return key_panels.index(2 * slot + (BLOCK - 2) // 8).slice((BLOCK - 2) % 8 * 16, 16, 1).load(layout)


@gluon.jit
def load_scale(scales, rope_scales, layout: gl.constexpr, BLOCK: gl.constexpr):
    if BLOCK < 2:
        return rope_scales.slice(BLOCK, 1, 1).load(layout)
    else:
        return scales.slice(BLOCK - 2, 1, 1).load(layout)


@gluon.jit
def block_scores(codes, q_smem, q_rope_smem, none, BLOCK: gl.constexpr):
    """Scores of one block: `codes` [tokens, 16] bytes times the queries' 32 dims; begun, not waited for."""
    even, odd = gl.inline_asm_elementwise(
        """
        {
            .reg .b32 s, m, n;
            shl.b32 s, $2, 4;
            shl.b32 m, $2, 2;
            shr.u32 n, $2, 2;
            and.b32 m, m, 0x1C1C1C1C;
            and.b32 n, n, 0x1C1C1C1C;
            lop3.b32 n, $2, 0x80808080, n, 0xEA;
            lop3.b32 $0, s, 0x80808080, m, 0xEA;
            mov.b32 $1, n;
        }
        """,
        "=r,=r,r",
        [codes],
        dtype=(gl.float8e4nv, gl.float8e4nv),
        is_pure=True,
        pack=4,
    )
    k = gl.reshape(gl.permute(gl.join(even, odd), (0, 2, 1)), [128, 32])
    k = gl.convert_layout(k, gl.DotOperandLayout(0, none.type.layout, 4), assert_trivial=True)
    if BLOCK < 2:
        q = q_rope_smem.index(BLOCK)
    else:
        q = q_smem.index(BLOCK - 2)
    return warpgroup_mma(k, q.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def load_values(codes, scales, acc_layout: gl.constexpr, FIRST: gl.constexpr):
    """Codes of all dims, four in an element, and TOKENS tokens from FIRST on as an operand lies, and their scales."""
    # Eight rows of four dims have one scale: the operand's layout with its rows as 16 x 8.
    rows_layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 1], [1, 0, 0], [0, 0, 8]],
        [[0, 0, 2], [0, 0, 4], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        [[2, 0, 0], [4, 0, 0], [8, 0, 0]],
        [],
        [16, 8, TOKENS],
    )
    operand_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    words = codes.slice(FIRST, TOKENS, 0).permute((1, 0)).load(operand_layout)
    scale = scales.slice(FIRST, TOKENS, 0).permute((1, 0)).load(gl.SliceLayout(1, rows_layout))
    scale = gl.broadcast(gl.expand_dims(scale, 1), gl.zeros([16, 8, TOKENS], gl.float16, rows_layout))[0]
    scale = gl.convert_layout(gl.reshape(scale, [128, TOKENS]), operand_layout, assert_trivial=True)
    return words, scale


@gluon.jit
def decode_even(words, scale):
    """The dims 4 i and 4 i + 2."""
    return gl.inline_asm_elementwise(
        """
        {
            .reg .b32 s, m, a, c, v;
            shl.b32 s, $2, 4;
            shl.b32 m, $2, 1;
            and.b32 m, m, 0x0E0E0E0E;
            lop3.b32 m, s, 0x80808080, m, 0xEA;
            prmt.b32 a, m, 0, 0x2404;
            and.b32 c, m, 0xFF00FF00;
            mov.b32 v, $3;
            mul.rn.f16x2 $0, a, v;
            mul.rn.f16x2 $1, c, v;
        }
        """,
        "=&r,=&r,r,r",
        [words, scale],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def decode_odd(words, scale):
    """The dims 4 i + 1 and 4 i + 3."""
    return gl.inline_asm_elementwise(
        """
        {
            .reg .b32 n, b, d, v;
            shr.u32 n, $2, 3;
            and.b32 n, n, 0x0E0E0E0E;
            lop3.b32 n, $2, 0x80808080, n, 0xEA;
            prmt.b32 b, n, 0, 0x2404;
            and.b32 d, n, 0xFF00FF00;
            mov.b32 v, $3;
            mul.rn.f16x2 $0, b, v;
            mul.rn.f16x2 $1, d, v;
        }
        """,
        "=&r,=&r,r,r",
        [words, scale],
        dtype=(gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def stacked(first, second):
    """Two operands [rows, tokens] as one of twice the rows: one product, and one wait, for both."""
    rows: gl.constexpr = 2 * first.shape[0]
    both = gl.reshape(gl.permute(gl.join(first, second), (2, 0, 1)), [rows, TOKENS])
    return gl.convert_layout(both, first.type.layout, assert_trivial=True)


@gluon.jit
def unstacked(both):
    """An accumulator's two halves of the rows."""
    layout: gl.constexpr = both.type.layout
    halves = gl.reshape(both, [2, both.shape[0] // 2, both.shape[1]])
    first, second = gl.split(gl.permute(halves, (1, 2, 0)))
    return gl.convert_layout(first, layout, assert_trivial=True), gl.convert_layout(second, layout, assert_trivial=True)


@gluon.jit
def sum_in_thread(weight):
    """[128, heads] to [8, 8, heads]: over the two rows that a thread holds, so nothing is exchanged."""
    return gl.sum(gl.reshape(weight, [8, 2, 8, weight.shape[1]]), 1)


@gluon.jit
def packed_bf16(low, high):
    """Two float32 tensors as one of int32, each of two bf16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def store_output(out_ptr, even, odd, factor, ONE_SPLIT: gl.constexpr, HEADS: gl.constexpr, LATENT: gl.constexpr):
    """Partial results lie [dims, heads], as registers hold them; the output [heads, dims]."""
    layout: gl.constexpr = even.type.layout
    acc0, acc2 = unstacked(even * factor)
    acc1, acc3 = unstacked(odd * factor)
    four = gl.arange(0, LATENT // 4, gl.SliceLayout(1, layout))[:, None]
    head = gl.arange(0, HEADS, gl.SliceLayout(0, layout))[None, :]
    if ONE_SPLIT:
        low = packed_bf16(acc0, acc1).to(gl.uint32, bitcast=True).to(gl.int64)
        high = packed_bf16(acc2, acc3).to(gl.int64) << 32
        gl.store(out_ptr.to(gl.pointer_type(gl.int64), bitcast=True) + head * (LATENT // 4) + four, low | high)
    else:
        place = out_ptr + 4 * four * HEADS + head
        gl.store(place, acc0)
        gl.store(place + HEADS, acc1)
        gl.store(place + 2 * HEADS, acc2)
        gl.store(place + 3 * HEADS, acc3)


@gluon.jit
def split_kv(
    latent_desc,  # (total_kv, (LATENT + ROPE) / 2) uint8, two E2M1 codes each, in blocks [BLOCK_N, LATENT / 2]
    rope_desc,  # the same in blocks [BLOCK_N, ROPE / 2]
    pair_ptr,  # (total_kv, (LATENT + ROPE) / 64) int16: two E8M0 bytes each
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_indptr,  # (batch + 1,) int32
    out_ptr,  # (batch, HEADS, LATENT) bf16 if there is one split, else (batch, splits, LATENT, HEADS) float32
    lse_ptr,  # (batch, splits, HEADS) float32, in log2; not written if there is one split
    score_scale,  # sm_scale * log2(e)
    splits,
    ONE_SPLIT: gl.constexpr,
    HEADS: gl.constexpr,
    LATENT: gl.constexpr,
    ROPE: gl.constexpr,
    BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):
    # The merge may take its place on the device now: it waits there for this kernel's end.
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )
    gl.static_assert(LATENT == 512 and ROPE == 64 and BLOCK_N == 128)
    DIM: gl.constexpr = LATENT + ROPE
    BLOCKS: gl.constexpr = DIM // 32
    q_layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [8, 1], [1, 0])
    r_layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [8, 1], [1, 0])
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, HEADS, 32])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, HEADS, 16])
    q_smem_layout: gl.constexpr = gl.NVMMASharedLayout(32, 8, 2)
    q_blocks_layout: gl.constexpr = gl.NVMMASharedLayout(32, 8, 3)
    p_smem_layout: gl.constexpr = gl.NVMMASharedLayout(32, 16, 2)
    by_token: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0, 1])
    by_head: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    all_peaks: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 8]],
        [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]],
        [[0, 0], [0, 0], [0, 0]],
        [],
        [8, HEADS],
    )

    split = gl.program_id(0)
    sequence = gl.program_id(1)
    first = gl.load(kv_indptr + sequence)
    length = gl.load(kv_indptr + sequence + 1) - first
    q_head = gl.arange(0, HEADS, gl.SliceLayout(1, q_layout))
    q_ptr += sequence.to(gl.int64) * (HEADS * DIM)  # 64-bit once; offsets within a sequence fit in 32
    q_row = q_ptr + q_head * DIM
    q = gl.load(q_row[:, None] + gl.arange(0, LATENT, gl.SliceLayout(0, q_layout))[None, :])
    r_head = gl.arange(0, HEADS, gl.SliceLayout(1, r_layout))
    r_row = q_ptr + r_head * DIM + LATENT
    q_rope = gl.load(r_row[:, None] + gl.arange(0, ROPE, gl.SliceLayout(0, r_layout))[None, :])

    ring = gl.allocate_shared_memory(gl.uint8, [STAGES, BLOCK_N, LATENT // 2], latent_desc.layout)
    rope_ring = gl.allocate_shared_memory(gl.uint8, [STAGES, BLOCK_N, ROPE // 2], rope_desc.layout)
    key_panels = ring._reinterpret(gl.uint8, [STAGES * 2, BLOCK_N, 128], gl.NVMMASharedLayout(128, 8, 2))
    value_ring = ring._reinterpret(gl.int16, [STAGES, BLOCK_N, LATENT // 4], gl.NVMMASharedLayout(128, 16, 2))
    q_blocks = gl.allocate_shared_memory(gl.float8e4nv, [LATENT // 32, HEADS, 32], q_blocks_layout)
    q_smem = q_blocks._reinterpret(gl.float8e4nv, [LATENT // 32, HEADS, 32], q_smem_layout)
    q_rope_blocks = gl.allocate_shared_memory(gl.float8e4nv, [ROPE // 32, HEADS, 32], q_blocks_layout)
    q_rope_smem = q_rope_blocks._reinterpret(gl.float8e4nv, [ROPE // 32, HEADS, 32], q_smem_layout)
    p_smem = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEADS], p_smem_layout)
    scales = gl.allocate_shared_memory(gl.float32, [2, BLOCK_N, LATENT // 32], by_token)
    rope_scales = gl.allocate_shared_memory(gl.float32, [2, BLOCK_N, ROPE // 32], by_token)
    value_scales = gl.allocate_shared_memory(gl.float16, [2, BLOCK_N, LATENT // 32], by_token)
    peaks = gl.allocate_shared_memory(gl.float32, [8, HEADS], by_head)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), 1)
    thread_barrier()

    span = gl.cdiv(gl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = first + split * span
    end = gl.minimum(begin + span, first + length)
    tiles = gl.cdiv(gl.maximum(end - begin, 0), BLOCK_N)
    for stage in gl.static_range(STAGES):
        row = begin + stage * BLOCK_N
        expect_tile(latent_desc, rope_desc, full, stage, tiles, STAGES)
        load_latent(latent_desc, ring, full, row, stage, tiles, STAGES)
        load_rope(rope_desc, latent_desc, rope_ring, full, row, stage, tiles, STAGES)
    pairs, rope_pairs = load_scales(pair_ptr, begin, end, BLOCKS)

    # 224 stays below e4m3's greatest value, 448. In a block of 32 dims even ones come first.
    q = q.to(gl.float32)
    q_rope = q_rope.to(gl.float32)
    amax = gl.max(gl.abs(q), 1)
    amax = gl.maximum(amax, gl.convert_layout(gl.max(gl.abs(q_rope), 1), amax.type.layout))
    step = gl.maximum(amax, 1e-30) / 224.0
    q = (q / step[:, None]).to(gl.float8e4nv)
    q = gl.permute(gl.reshape(q, [HEADS, LATENT // 32, 16, 2]), (1, 0, 3, 2))
    q_blocks.store(gl.reshape(q, [LATENT // 32, HEADS, 32]))
    q_rope = (q_rope / gl.convert_layout(step, gl.SliceLayout(1, r_layout))[:, None]).to(gl.float8e4nv)
    q_rope = gl.permute(gl.reshape(q_rope, [HEADS, ROPE // 32, 16, 2]), (1, 0, 3, 2))
    q_rope_blocks.store(gl.reshape(q_rope, [ROPE // 32, HEADS, 32]))
    store_scales(pairs, rope_pairs, scales.index(0), rope_scales.index(0), value_scales.index(0))
    fence_async_shared()
    # Keys are decoded to 2^-6 of themselves.
    score_scale = gl.convert_layout(step, gl.SliceLayout(0, s_layout)) * (score_scale * 64.0)
    thread_barrier()

    token = gl.arange(0, BLOCK_N, gl.SliceLayout(1, s_layout))
    peak = gl.full([HEADS], float("-inf"), gl.float32, gl.SliceLayout(0, s_layout))
    none = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)
    totals = sum_in_thread(none)
    even = gl.zeros([LATENT // 2, HEADS], gl.float32, o_layout)
    odd = gl.zeros([LATENT // 2, HEADS], gl.float32, o_layout)
    for tile in range(tiles):
        slot = tile % STAGES
        later = (tile + 1) % 2
        mbarrier.wait(full.index(slot), tile // STAGES & 1)
        # Two products are under way while the one before them is scaled, and the next two blocks' codes are fetched.
        rope_codes = rope_ring.index(slot)
        codes = load_keys(key_panels, rope_codes, slot, 0)
        next_codes = load_keys(key_panels, rope_codes, slot, 1)
        oldest = block_scores(codes, q_smem, q_rope_smem, none, 0)
        codes = load_keys(key_panels, rope_codes, slot, 2)
        newer = block_scores(next_codes, q_smem, q_rope_smem, none, 1)
        next_codes = load_keys(key_panels, rope_codes, slot, 3)
        score = none
        for block in gl.static_range(BLOCKS):
            scale = load_scale(scales.index(tile % 2), rope_scales.index(tile % 2), s_layout, block)
            newest = newer
            if block + 2 < BLOCKS:
                these = codes
                codes = next_codes
                if block + 4 < BLOCKS:
                    next_codes = load_keys(key_panels, rope_codes, slot, block + 4)
                newest = block_scores(these, q_smem, q_rope_smem, none, block + 2)
            score += warpgroup_mma_wait(min(2, BLOCKS - 1 - block), deps=[oldest]) * scale
            oldest = newer
            newer = newest

        valid = begin + tile * BLOCK_N + token < end
        score = gl.where(valid[:, None], score, float("-inf"))
        peaks.store(gl.max(gl.reshape(score, [8, 16, HEADS]), 1))  # of each warp
        thread_barrier()
        highest = gl.convert_layout(gl.max(peaks.load(all_peaks), 0), gl.SliceLayout(0, s_layout))
        new_peak = gl.maximum(peak, highest * score_scale)
        shrink = gl.exp2(peak - new_peak)
        weight = gl.exp2(score * score_scale[None, :] - new_peak[None, :])
        shrink_totals = gl.convert_layout(shrink, gl.SliceLayout(0, gl.SliceLayout(1, totals.type.layout)))
        totals = totals * shrink_totals[None, None, :] + sum_in_thread(weight)
        peak = new_peak
        p_smem.store(weight.to(gl.float16))
        pairs, rope_pairs = load_scales(pair_ptr, begin + (tile + 1) * BLOCK_N, end, BLOCKS)
        shrink = gl.convert_layout(shrink, gl.SliceLayout(0, o_layout))[None, :]
        even *= shrink
        odd *= shrink
        fence_async_shared()
        thread_barrier()
        values = value_ring.index(slot)
        this_scales = value_scales.index(tile % 2)
        words, scale = load_values(values, this_scales, o_layout, 0)
        for part in gl.static_range(BLOCK_N // TOKENS):
            p = p_smem.slice(part * TOKENS, TOKENS, 0)
            v0, v2 = decode_even(words, scale)
            even = warpgroup_mma(stacked(v0, v2), p, even, is_async=True)
            odd = warpgroup_mma_wait(1, deps=[odd])
            v1, v3 = decode_odd(words, scale)
            if part + 1 < BLOCK_N // TOKENS:
                words, scale = load_values(values, this_scales, o_layout, (part + 1) * TOKENS)
            odd = warpgroup_mma(stacked(v1, v3), p, odd, is_async=True)
            even = warpgroup_mma_wait(1, deps=[even])
        even, odd = warpgroup_mma_wait(0, deps=[even, odd])
        ahead = tile + STAGES
        ahead_row = begin + ahead * BLOCK_N
        expect_tile(latent_desc, rope_desc, full, ahead, tiles, STAGES)
        thread_barrier()  # all warps have read the tile: its place is free
        load_latent(latent_desc, ring, full, ahead_row, ahead, tiles, STAGES)
        store_scales(pairs, rope_pairs, scales.index(later), rope_scales.index(later), value_scales.index(later))
        thread_barrier()  # the next tile's scales are there
        load_rope(rope_desc, latent_desc, rope_ring, full, ahead_row, ahead, tiles, STAGES)

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    total = gl.convert_layout(gl.sum(gl.sum(totals, 0), 0), gl.SliceLayout(0, s_layout))
    factor = gl.where(total > 0, (1 << VALUE_SHIFT) / total, 0.0)
    factor = gl.convert_layout(factor, gl.SliceLayout(0, o_layout))[None, :]
    row = (sequence * splits + split).to(gl.int64)
    out_ptr += row * (HEADS * LATENT)
    store_output(out_ptr, even, odd, factor, ONE_SPLIT, HEADS, LATENT)
    if not ONE_SPLIT:
        head = gl.arange(0, HEADS, gl.SliceLayout(0, s_layout))
        gl.store(lse_ptr + row * HEADS + head, gl.where(total > 0, peak + gl.log2(total), float("-inf")))


@triton.jit
def merge_splits(
    partial_ptr,  # (batch, splits, LATENT, HEADS) float32
    lse_ptr,  # (batch, splits, HEADS) float32, in log2
    out_ptr,  # (batch, HEADS, LATENT) bf16
    splits,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    DIMS: tl.constexpr,  # that a program merges, of all heads
    SPLITS: tl.constexpr,  # splits, rounded up to a power of two
):
    tl.extra.cuda.gdc_wait()
    sequence = tl.program_id(0).to(tl.int64)
    head = tl.arange(0, HEADS)
    dim = tl.program_id(1) * DIMS + tl.arange(0, DIMS)
    split = tl.arange(0, SPLITS)
    exists = split < splits
    row = sequence * splits + split
    lse = tl.load(lse_ptr + row[:, None] * HEADS + head[None, :], mask=exists[:, None], other=float("-inf"))
    cell = dim[:, None] * HEADS + head[None, :]
    partial = tl.load(
        partial_ptr + row[:, None, None] * (LATENT * HEADS) + cell[None, :, :],
        mask=exists[:, None, None],
        other=0.0,
    )
    peak = tl.max(lse, 0)
    weight = tl.exp2(lse - tl.where(peak == float("-inf"), 0.0, peak)[None, :])
    total = tl.sum(weight, 0)
    merged = tl.sum(partial * weight[:, None, :], 0) * tl.where(total > 0, 1.0 / total, 0.0)[None, :]
    place = out_ptr + (sequence * HEADS + head[None, :]) * LATENT + dim[:, None]
    tl.store(place, merged.to(out_ptr.dtype.element_ty))


def custom_kernel(data):
    return launch(data)


def launch(data, stages=2, per_multiprocessor=None):
    """What `custom_kernel` does, with other choices than its own. Raises NoDevice without a Hopper GPU."""
    q, kv_data, _, kv_indptr, config = data
    if q.device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(q.device)[0] != 9:
        raise NoDevice("gluon_mxfp4 needs a Hopper GPU (sm_90): its instructions exist nowhere else")
    packed, e8m0 = kv_data["mxfp4"]
    packed = packed.view(-1, (LATENT + ROPE) // 2)
    batch, longest = q.shape[0], config["kv_seq_len"]
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    if longest == 0:
        return out.zero_()
    splits = choose_splits(q, triton.cdiv(longest, BLOCK_N), per_multiprocessor)
    partial, lse = out, out
    if splits > 1:
        partial = torch.empty(batch, splits, LATENT, HEADS, dtype=torch.float32, device=q.device)
        lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)

    def descriptor(dims):
        block = [BLOCK_N, dims // 2]
        return TensorDescriptor.from_tensor(packed, block, gl.NVMMASharedLayout.get_default_for(block, gl.uint8))

    split_kv[(splits, batch)](
        descriptor(LATENT), descriptor(ROPE), e8m0.view(torch.int16), q, kv_indptr, partial, lse,
        config["sm_scale"] * LOG2_E, splits,
        ONE_SPLIT=splits == 1, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=BLOCK_N, STAGES=stages,
        num_warps=8, maxnreg=128,
    )  # fmt: skip
    if splits > 1:
        padded = triton.next_power_of_2(splits)
        dims = max(MERGE_ELEMENTS // padded // HEADS, 4)
        merge_splits[(batch, LATENT // dims)](
            partial, lse, out, splits, HEADS=HEADS, LATENT=LATENT, DIMS=dims, SPLITS=padded,
            num_warps=4, launch_pdl=True,
        )  # fmt: skip
    return out


def choose_splits(q, tiles, per_multiprocessor=None):
    """How many programs share the tokens of a sequence of so many tiles."""
    multiprocessors = torch.cuda.get_device_properties(q.device).multi_processor_count
    for each in [per_multiprocessor] if per_multiprocessor else [2, 1]:
        splits = max(min(each * multiprocessors // q.shape[0], tiles, MAX_SPLITS), 1)
        if tiles >= LEAST_TILES * splits:
            break
    return splits

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
              two tokens: 15 instructions for 8 values. Four accumulators take the dims 4 i, 4 i + 1, 4 i + 2 and
              4 i + 3. 16 tokens are decoded while the product of the 16 before them is under way.
    scales    18 bytes a token are not aligned enough for TMA: threads load those of the tile after the next one, and
              store those of the next one to shared memory as float32 for the scores and as fp16 for the values

Exact for the keys; for the values while a block's E8M0 byte is 112 to 136, that is for blocks whose largest magnitude
lies between 2^-13 and 3500. Values below are rounded to steps of 2^-16, scales above are taken as 2^9.

Tiles. 128 tokens, 36 KiB, two a program. A program is two warpgroups: for the scores each takes 64 of the tokens, for
the output each takes 256 of the dims with all tokens, so that 128 registers a thread suffice but for a few words: two
programs a multiprocessor are sixteen warps. Programs of one warpgroup, with 255 registers, and so eight warps, took 2
to 15 % longer, but in one case, 256 x 1024, 2 % less. Where two programs leave each fewer than 4 tiles, one a
multiprocessor is faster: less to merge.

Bytes. 306 a token, and 64 KiB a (sequence, split) for the partial results.

Measured on an NVIDIA H200, 2026-11-20 (docs/kernels.md has every case): 1.3 times gluon_fp8.py's time from 32 x
8192 tokens on; at 256 x 8192 a third of triton_mxfp4.py's, and 38 % of its own floor. What limits it is decoding: 128
tokens take 2.6 times the instructions of gluon_fp8.py. Only for Hopper (sm_90): elsewhere see triton_mxfp4.py.
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
def load_tile(latent_desc, rope_desc, ring, rope_ring, full, row, tile, tiles, STAGES: gl.constexpr):
    """Ask TMA for a tile, if there is one, into the place that it has in the ring."""
    slot = tile % STAGES
    exists = tile < tiles
    bar = full.index(slot)
    mbarrier.expect(bar, latent_desc.block_type.nbytes + rope_desc.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(rope_desc, [row, latent_desc.block_shape[1]], bar, rope_ring.index(slot), exists)
    tma.async_copy_global_to_shared(latent_desc, [row, 0], bar, ring.index(slot), exists)


@gluon.jit
def load_scales(pair_ptr, row, end, BLOCKS: gl.constexpr):
    """E8M0 bytes of 128 tokens, two in each of 8 int16 of the latent part, and the rope part's two in another one."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [16, 2], [8, 1], [1, 0])
    token = row + gl.arange(0, 128, gl.SliceLayout(1, layout))
    pair = gl.arange(0, 8, gl.SliceLayout(0, layout))
    rope_token = row + gl.arange(0, 128, gl.BlockedLayout([1], [32], [8], [0]))
    latent = gl.load(pair_ptr + (token * (BLOCKS // 2))[:, None] + pair[None, :], mask=(token < end)[:, None], other=0)
    rope = gl.load(pair_ptr + rope_token * (BLOCKS // 2) + 8, mask=rope_token < end, other=0)
    return latent, rope


@gluon.jit
def store_scales(latent, rope, scales, rope_scales, value_scales):
    """Float32 2^(e8m0 - 127) for the scores; fp16 2^(14 - VALUE_SHIFT) of it for the values, exponents within 0..30."""
    e8m0 = latent.to(gl.int32)
    e8m0 = gl.reshape(gl.join(e8m0 & 255, (e8m0 >> 8) & 255), [128, 16])
    scales.store((e8m0 << 23).to(gl.float32, bitcast=True))
    exponent = gl.minimum(gl.maximum(e8m0 - (127 - 15 - 14 + VALUE_SHIFT), 0), 30)
    value_scales.store((exponent << 10).to(gl.int16).to(gl.float16, bitcast=True))
    e8m0 = rope.to(gl.int32)
    rope_scales.store((gl.join(e8m0 & 255, (e8m0 >> 8) & 255) << 23).to(gl.float32, bitcast=True))


@gluon.jit
def block_scores(codes, q, none):
    """Scores of one block of 32 dims: `codes` [tokens, 16] bytes times `q` [heads, 32]; begun, not waited for."""
    bytes_layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0], [64, 0]], [], [128, 16]
    )
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
        [codes.load(bytes_layout)],
        dtype=(gl.float8e4nv, gl.float8e4nv),
        is_pure=True,
        pack=4,
    )
    k = gl.reshape(gl.permute(gl.join(even, odd), (0, 2, 1)), [128, 32])
    k = gl.convert_layout(k, gl.DotOperandLayout(0, none.type.layout, 4), assert_trivial=True)
    return warpgroup_mma(k, q.permute((1, 0)), none, use_acc=False, is_async=True)


@gluon.jit
def two_blocks(codes, q_smem, none, FIRST: gl.constexpr):
    """Begin the scores of blocks FIRST and FIRST + 1. `codes` [tokens, 128] bytes, of eight blocks."""
    AT: gl.constexpr = FIRST % 8 * 16
    d0 = block_scores(codes.slice(AT, 16, 1), q_smem.index(FIRST), none)
    d1 = block_scores(codes.slice(AT + 16, 16, 1), q_smem.index(FIRST + 1), none)
    return d0, d1


@gluon.jit
def add_blocks(score, d0, d1, scales, FIRST: gl.constexpr):
    layout: gl.constexpr = score.type.layout
    score += d0 * scales.slice(FIRST, 1, 1).load(layout)
    score += d1 * scales.slice(FIRST + 1, 1, 1).load(layout)
    return score


@gluon.jit
def decode_values(codes, scales, acc_layout: gl.constexpr, FIRST: gl.constexpr):
    """Of all dims and TOKENS tokens from FIRST on: operands of the dims 4 i, 4 i + 1, 4 i + 2 and 4 i + 3."""
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
    return gl.inline_asm_elementwise(
        """
        {
            .reg .b32 s, m, n, a, b, c, d, v;
            shl.b32 s, $4, 4;
            shl.b32 m, $4, 1;
            shr.u32 n, $4, 3;
            and.b32 m, m, 0x0E0E0E0E;
            and.b32 n, n, 0x0E0E0E0E;
            lop3.b32 m, s, 0x80808080, m, 0xEA;
            lop3.b32 n, $4, 0x80808080, n, 0xEA;
            prmt.b32 a, m, 0, 0x2404;
            prmt.b32 b, n, 0, 0x2404;
            and.b32 c, m, 0xFF00FF00;
            and.b32 d, n, 0xFF00FF00;
            mov.b32 v, $5;
            mul.rn.f16x2 $0, a, v;
            mul.rn.f16x2 $1, b, v;
            mul.rn.f16x2 $2, c, v;
            mul.rn.f16x2 $3, d, v;
        }
        """,
        "=&r,=&r,=&r,=&r,r,r",
        [words, scale],
        dtype=(gl.float16, gl.float16, gl.float16, gl.float16),
        is_pure=True,
        pack=2,
    )


@gluon.jit
def attend_values(v0, v1, v2, v3, p, acc0, acc1, acc2, acc3):
    acc0 = warpgroup_mma(v0, p, acc0, is_async=True)
    acc1 = warpgroup_mma(v1, p, acc1, is_async=True)
    acc2 = warpgroup_mma(v2, p, acc2, is_async=True)
    acc3 = warpgroup_mma(v3, p, acc3, is_async=True)
    return acc0, acc1, acc2, acc3


@gluon.jit
def packed_bf16(low, high):
    """Two float32 tensors as one of int32, each of two bf16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def store_output(out_ptr, acc0, acc1, acc2, acc3, factor, ONE_SPLIT: gl.constexpr,
                 HEADS: gl.constexpr, LATENT: gl.constexpr):  # fmt: skip
    """Partial results lie [dims, heads], as registers hold them; the output [heads, dims]."""
    layout: gl.constexpr = acc0.type.layout
    four = gl.arange(0, LATENT // 4, gl.SliceLayout(1, layout))[:, None]
    head = gl.arange(0, HEADS, gl.SliceLayout(0, layout))[None, :]
    acc0 *= factor
    acc1 *= factor
    acc2 *= factor
    acc3 *= factor
    if ONE_SPLIT:
        place = out_ptr.to(gl.pointer_type(gl.int32), bitcast=True) + head * (LATENT // 2) + 2 * four
        gl.store(place, packed_bf16(acc0, acc1))
        gl.store(place + 1, packed_bf16(acc2, acc3))
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
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), 1)
    thread_barrier()

    span = gl.cdiv(gl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = first + split * span
    end = gl.minimum(begin + span, first + length)
    tiles = gl.cdiv(gl.maximum(end - begin, 0), BLOCK_N)
    for stage in gl.static_range(STAGES):
        load_tile(latent_desc, rope_desc, ring, rope_ring, full, begin + stage * BLOCK_N, stage, tiles, STAGES)
    pairs, rope_pairs = load_scales(pair_ptr, begin, end, BLOCKS)
    next_pairs, next_rope_pairs = load_scales(pair_ptr, begin + BLOCK_N, end, BLOCKS)

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
    totals = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)  # of each row of the tile
    none = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)
    acc0 = gl.zeros([LATENT // 4, HEADS], gl.float32, o_layout)
    acc1 = gl.zeros([LATENT // 4, HEADS], gl.float32, o_layout)
    acc2 = gl.zeros([LATENT // 4, HEADS], gl.float32, o_layout)
    acc3 = gl.zeros([LATENT // 4, HEADS], gl.float32, o_layout)
    for tile in range(tiles):
        slot = tile % STAGES
        mbarrier.wait(full.index(slot), tile // STAGES & 1)
        codes = key_panels.index(2 * slot)
        more_codes = key_panels.index(2 * slot + 1)
        rope_codes = rope_ring.index(slot)
        a0, a1 = two_blocks(rope_codes, q_rope_smem, none, 0)
        b0, b1 = two_blocks(codes, q_smem, none, 0)
        a0, a1 = warpgroup_mma_wait(2, deps=[a0, a1])
        this = scales.index(tile % 2)
        rope_this = rope_scales.index(tile % 2)
        score = a0 * rope_this.slice(0, 1, 1).load(s_layout)
        score += a1 * rope_this.slice(1, 1, 1).load(s_layout)
        a0, a1 = two_blocks(codes, q_smem, none, 2)
        b0, b1 = warpgroup_mma_wait(2, deps=[b0, b1])
        score = add_blocks(score, b0, b1, this, 0)
        b0, b1 = two_blocks(codes, q_smem, none, 4)
        a0, a1 = warpgroup_mma_wait(2, deps=[a0, a1])
        score = add_blocks(score, a0, a1, this, 2)
        a0, a1 = two_blocks(codes, q_smem, none, 6)
        b0, b1 = warpgroup_mma_wait(2, deps=[b0, b1])
        score = add_blocks(score, b0, b1, this, 4)
        b0, b1 = two_blocks(more_codes, q_smem, none, 8)
        a0, a1 = warpgroup_mma_wait(2, deps=[a0, a1])
        score = add_blocks(score, a0, a1, this, 6)
        a0, a1 = two_blocks(more_codes, q_smem, none, 10)
        b0, b1 = warpgroup_mma_wait(2, deps=[b0, b1])
        score = add_blocks(score, b0, b1, this, 8)
        b0, b1 = two_blocks(more_codes, q_smem, none, 12)
        a0, a1 = warpgroup_mma_wait(2, deps=[a0, a1])
        score = add_blocks(score, a0, a1, this, 10)
        a0, a1 = two_blocks(more_codes, q_smem, none, 14)
        b0, b1 = warpgroup_mma_wait(2, deps=[b0, b1])
        score = add_blocks(score, b0, b1, this, 12)
        a0, a1 = warpgroup_mma_wait(0, deps=[a0, a1])
        score = add_blocks(score, a0, a1, this, 14)

        valid = begin + tile * BLOCK_N + token < end
        score = gl.where(valid[:, None], score, float("-inf"))
        new_peak = gl.maximum(peak, gl.max(score, 0) * score_scale)
        shrink = gl.exp2(peak - new_peak)
        weight = gl.exp2(score * score_scale[None, :] - new_peak[None, :])
        totals = totals * shrink[None, :] + weight
        peak = new_peak
        p_smem.store(weight.to(gl.float16))
        later = (tile + 1) % 2
        store_scales(
            next_pairs, next_rope_pairs, scales.index(later), rope_scales.index(later), value_scales.index(later)
        )
        next_pairs, next_rope_pairs = load_scales(pair_ptr, begin + (tile + 2) * BLOCK_N, end, BLOCKS)
        shrink = gl.convert_layout(shrink, gl.SliceLayout(0, o_layout))[None, :]
        acc0 *= shrink
        acc1 *= shrink
        acc2 *= shrink
        acc3 *= shrink
        fence_async_shared()
        thread_barrier()
        values = value_ring.index(slot)
        this_scales = value_scales.index(tile % 2)
        v0, v1, v2, v3 = decode_values(values, this_scales, o_layout, 0)
        for part in gl.static_range(BLOCK_N // TOKENS):
            p = p_smem.slice(part * TOKENS, TOKENS, 0)
            acc0, acc1, acc2, acc3 = attend_values(v0, v1, v2, v3, p, acc0, acc1, acc2, acc3)
            if part + 1 < BLOCK_N // TOKENS:
                v0, v1, v2, v3 = decode_values(values, this_scales, o_layout, (part + 1) * TOKENS)
            acc0, acc1, acc2, acc3 = warpgroup_mma_wait(0, deps=[acc0, acc1, acc2, acc3])
        thread_barrier()  # all warps have read the tile: its place is free
        ahead = tile + STAGES
        load_tile(latent_desc, rope_desc, ring, rope_ring, full, begin + ahead * BLOCK_N, ahead, tiles, STAGES)

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    total = gl.sum(totals, 0)
    factor = gl.where(total > 0, (1 << VALUE_SHIFT) / total, 0.0)
    factor = gl.convert_layout(factor, gl.SliceLayout(0, o_layout))[None, :]
    row = (sequence * splits + split).to(gl.int64)
    out_ptr += row * (HEADS * LATENT)
    store_output(out_ptr, acc0, acc1, acc2, acc3, factor, ONE_SPLIT, HEADS, LATENT)
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

"""MLA decode on the mxfp4 cache, for Hopper in Gluon: each code is decoded once, with its scale, by table.

Idea. As in gluon_fp8.py: all 16 heads of a sequence in one program, scores S^T [tokens, heads] = K Q^T and output
O^T [dims, heads] = V^T P^T, a sequence cut into splits, whose programs wait for each other and merge a share of the
dims each; where not all have a place at once, the last of a sequence merges all of them. What the instructions do is
decoding, so a tile's codes are decoded once, for keys and values alike, and with their scale in them:

    e5m2      holds an E2M1 value times a power of two exactly, and is the high byte of the fp16 of the same value
    table     the eight magnitudes of a block, times its scale, are eight bytes: two registers. A byte permutation takes
              four codes to four bytes; a second one, from a table of 0x40 alone, gives 0x40 for each code without a
              sign, since it replicates the (zero) sign of the byte where the code's highest bit is set. Twice that plus
              the magnitude is minus the value: 9 instructions for 8 codes. The queries are negated for it, and in
              the end the output.
    keys      as threads decode them: a thread takes the 16 bytes of a whole block of a token, so two registers of
              table do for 32 codes, and the bytes lie as the fp8 instruction wants its operand in registers if the
              queries' dims are permuted likewise
    values    the same registers are stored to shared memory as they are (stmatrix). ldmatrix transposes 16-bit
              elements, here two neighbouring bytes: of tokens t and t + 1 a permutation makes the fp16 pair of the
              first byte, a mask that of the second. No conversion, no scale: 2 instructions for 4 values.

The queries are rounded to e4m3 by a scale a head. Keys and values are exact while a block's E8M0 byte is 110 to 136,
that is for scales from 2^-17 to 2^9; a scale below is taken as 2^-18, one above as 2^9.

Tiles. 64 tokens, 18 KiB of codes; three programs a multiprocessor, for which 168 registers a thread and 62 KiB suffice
with one place for codes: it is filled again as soon as all have read it, while weights and output are computed.

Bytes. 306 a token, and 32 KiB a (sequence, split) for the partial results, which are fp16. Limited by instructions: a
tile takes a warp 911, half of them permutations, masks, shifts and comparisons, whose unit has half of the schedulers'
rate. docs/kernels.md has what was measured, and what was slower. Only for Hopper (sm_90): elsewhere see
triton_mxfp4.py.
"""

import functools

import torch
import triton
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
BLOCK_N = 64  # tokens a tile: the M of a warpgroup's matrix instruction
PLACES = 3  # for programs, on a multiprocessor
LEAST_TILES = {3: 4, 2: 2, 1: 1}  # a program, by the programs a multiprocessor
MAX_SPLITS = 64
LOG2_E = 1.4426950408889634
SHIFT = gl.constexpr(4)  # decoded values are 2^SHIFT of themselves: e5m2's range lies around 2^0 then
TOKENS = gl.constexpr(32)  # whose values are added up at a time
thread_barrier = gl.thread_barrier if hasattr(gl, "thread_barrier") else gl.barrier  # its name since Triton 3.7


@gluon.jit
def load_tile(latent_desc, rope_desc, codes, rope_codes, full, row, exists):
    """Ask TMA for a tile's codes, if there is one, into their place."""
    mbarrier.expect(full, latent_desc.block_type.nbytes + rope_desc.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(rope_desc, [row, latent_desc.block_shape[1]], full, rope_codes, exists)
    tma.async_copy_global_to_shared(latent_desc, [row, 0], full, codes, exists)


@gluon.jit
def load_scales(pair_ptr, byte_ptr, row, end, BLOCKS: gl.constexpr):
    """E8M0 bytes of 64 tokens: two in each of 4 int16 of either half of the latent part, and the rope part's two."""
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[8, 0]], [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 4]
    )
    rope_layout: gl.constexpr = gl.DistributedLinearLayout(
        [[8, 0]], [[0, 0], [0, 1], [1, 0], [2, 0], [4, 0]], [[16, 0], [32, 0]], [], [64, 2]
    )
    last = gl.maximum(end - 1, 0)
    token = gl.minimum(row + gl.arange(0, 64, gl.SliceLayout(1, layout)), last)[:, None]
    pairs = pair_ptr + token * (BLOCKS // 2) + gl.arange(0, 4, gl.SliceLayout(0, layout))[None, :]
    token = gl.minimum(row + gl.arange(0, 64, gl.SliceLayout(1, rope_layout)), last)[:, None]
    rope = byte_ptr + token * BLOCKS + (BLOCKS - 2) + gl.arange(0, 2, gl.SliceLayout(0, rope_layout))[None, :]
    return gl.load(pairs), gl.load(pairs + 4), gl.load(rope)


@gluon.jit
def tables(e8m0):
    """Of E8M0 bytes the e5m2 of 2^SHIFT * 2^(e8m0 - 127) times 0, .5, 1, 1.5 and times 2, 3, 4, 6: four bytes a word.

    With E = e8m0 - 109 from 0 to 27 the bytes are 0, 4 E, 4 E + 4, 4 E + 6 and 4 E + 8, + 10, + 12, + 14: exponents are
    from bit 2 on, 0.5's is E. The constants are the words of e8m0 = 0, modulo 2^32.
    """
    gl.static_assert(SHIFT == 4)
    return gl.inline_asm_elementwise(
        """
        {
            .reg .b32 t;
            max.u32 t, $2, 109;
            min.u32 t, t, 136;
            mad.lo.u32 $0, t, 0x04040400, 0x504E4C00;
            mad.lo.u32 $1, t, 0x04040404, 0x58565454;
        }
        """,
        "=&r,=&r,r",
        [e8m0],
        dtype=(gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )


@gluon.jit
def for_each_byte(table, layout: gl.constexpr, spread: gl.constexpr):
    """A block's table for each of its 16 bytes of codes: [tokens, blocks] to [tokens, bytes], which moves nothing."""
    table = gl.convert_layout(table, gl.SliceLayout(2, spread), assert_trivial=True)
    shape: gl.constexpr = [table.shape[0], table.shape[1], 16]
    table = gl.broadcast(gl.expand_dims(table, 2), gl.zeros(shape, gl.int32, spread))[0]
    return gl.convert_layout(gl.reshape(table, [shape[0], shape[1] * 16]), layout, assert_trivial=True)


@gluon.jit
def decoded(codes, e8m0, plus, spread: gl.constexpr):
    """Of each word of codes the four first and the four last, as e5m2 bytes of minus their values."""
    layout: gl.constexpr = codes.type.layout
    low, high = tables(e8m0)
    return gl.inline_asm_elementwise(
        """
        {
            .reg .b32 m, n, h, a, b, s, t;
            and.b32 m, $2, 0x77777777;
            shr.u32 h, $2, 16;
            shr.u32 n, m, 16;
            prmt.b32 a, $3, $7, m;
            prmt.b32 s, $11, $11, $2;
            prmt.b32 b, $3, $7, n;
            prmt.b32 t, $11, $11, h;
            mad.lo.u32 $0, s, 2, a;
            mad.lo.u32 $1, t, 2, b;
        }
        """,
        "=&r,=&r,r,r,r,r,r,r,r,r,r,r,r,r,r",
        [codes, for_each_byte(low, layout, spread), for_each_byte(high, layout, spread), plus],
        dtype=(gl.float8e5, gl.float8e5),
        is_pure=True,
        pack=4,
    )


@gluon.jit
def load_codes(panel):
    """Half of the latent part's: of 8 blocks the even ones and the odd ones, each [tokens, 4 blocks of 16 bytes].

    A thread has one block of either kind and two tokens, so that neither these loads nor tables repeat anything.
    """
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [8, 0]],
        [[0, 32], [0, 64], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [64, 128],
    )
    even, odd = gl.split(gl.permute(gl.reshape(panel.load(layout), [64, 4, 2, 16]), (0, 1, 3, 2)))
    return gl.reshape(even, [64, 64]), gl.reshape(odd, [64, 64])


@gluon.jit
def decode_latent(codes, e8m0, plus, none):
    """Keys of 128 dims. Their order, outermost first: word in a block, half of a word, block, code in the half."""
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 8], [8, 0]],
        [[0, 16], [0, 32], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [64, 64],
    )
    spread: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 0, 4], [0, 0, 8], [8, 0, 0]],
        [[0, 1, 0], [0, 2, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        [[16, 0, 0], [32, 0, 0]],
        [],
        [64, 4, 16],
    )
    codes = gl.convert_layout(codes, layout, assert_trivial=True)
    first, last = decoded(codes, e8m0, plus, spread)
    k = gl.permute(gl.reshape(gl.join(first, last), [64, 4, 4, 4, 2]), (0, 2, 4, 1, 3))
    return gl.convert_layout(gl.reshape(k, [64, 128]), gl.DotOperandLayout(0, none.type.layout, 4), assert_trivial=True)


@gluon.jit
def decode_rope(codes, e8m0, plus, none):
    """The rope part's 64 dims. Two threads share a block: word of theirs, half of it, thread, code in the half."""
    layout: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [64, 32],
    )
    spread: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 0, 1], [0, 0, 2], [0, 0, 4], [8, 0, 0]],
        [[0, 0, 8], [0, 1, 0], [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        [[16, 0, 0], [32, 0, 0]],
        [],
        [64, 2, 16],
    )
    first, last = decoded(codes.load(layout), e8m0.to(gl.int32), plus, spread)
    k = gl.permute(gl.reshape(gl.join(first, last), [64, 4, 2, 4, 2]), (0, 2, 4, 1, 3))
    return gl.convert_layout(gl.reshape(k, [64, 64]), gl.DotOperandLayout(0, none.type.layout, 4), assert_trivial=True)


@gluon.jit
def load_values(panel, acc_layout: gl.constexpr, FIRST: gl.constexpr):
    """TOKENS tokens of a panel, as 64 pairs of bytes, as an operand lies."""
    pairs = panel._reinterpret(gl.int16, [panel.shape[0], 64], gl.NVMMASharedLayout(128, 16, 2))
    return pairs.slice(FIRST, TOKENS, 0).permute((1, 0)).load(gl.DotOperandLayout(0, acc_layout, 2))


@gluon.jit
def first_bytes(pairs):
    """As fp16: a byte is the high one of it."""
    return gl.inline_asm_elementwise(
        "prmt.b32 $0, $1, 0, 0x2404;", "=r,r", [pairs], dtype=gl.float16, is_pure=True, pack=2
    )


@gluon.jit
def second_bytes(pairs):
    return gl.inline_asm_elementwise(
        "and.b32 $0, $1, 0xFF00FF00;", "=r,r", [pairs], dtype=gl.float16, is_pure=True, pack=2
    )


@gluon.jit
def packed_bf16(low, high):
    """Two float32 tensors as one of int32, each of two bf16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def packed_fp16(low, high):
    """The same of two fp16."""
    return gl.inline_asm_elementwise(
        "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def store_panel(out_ptr, even, odd, factor, PANEL: gl.constexpr, ONE_SPLIT: gl.constexpr,
                HEADS: gl.constexpr, LATENT: gl.constexpr):  # fmt: skip
    """128 dims of the output. Partial results lie [pairs of dims, heads], about as registers hold them."""
    layout: gl.constexpr = even.type.layout
    row = gl.arange(0, 64, gl.SliceLayout(1, layout))[:, None]  # a pair of bytes: in decode_latent's order
    block = PANEL // 2 * 8 + row // 2 % 4 * 2 + PANEL % 2
    pair = block * 16 + row // 16 * 4 + row // 8 % 2 * 2 + row % 2
    head = gl.arange(0, HEADS, gl.SliceLayout(0, layout))[None, :]
    even = even * factor
    odd = odd * factor
    words = out_ptr.to(gl.pointer_type(gl.int32), bitcast=True)
    if ONE_SPLIT:
        gl.store(words + head * (LATENT // 2) + pair, packed_bf16(even, odd))
    else:
        gl.store(words + pair * HEADS + head, packed_fp16(even, odd))


@gluon.jit
def arrive(counter_ptr):
    """Say that this program's partial result is stored. Returns how many had said so before: their stores are seen."""
    thread_barrier()
    return gl.atomic_add(counter_ptr, 1, sem="acq_rel", scope="gpu")


@gluon.jit
def wait_for(counter_ptr, count):
    """Until so many have arrived."""
    gl.inline_asm_elementwise(
        """
        {
            .reg .pred p;
            .reg .b32 thread;
            .reg .b64 so_far;
            mov.u32 thread, %tid.x;
            setp.ge.u32 p, thread, 32;
            @p bra DONE;
        AGAIN:
            ld.acquire.gpu.global.b64 so_far, [$1];
            setp.lt.s64 p, so_far, $2;
            @p bra AGAIN;
        DONE:
            mov.b32 $0, 0;
        }
        """,
        "=r,l,l",
        [counter_ptr.to(gl.int64, bitcast=True), count],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    thread_barrier()


@gluon.jit
def merge_slice(partial_ptr, lse_ptr, out_ptr, sequence, part, splits,
                SPLITS: gl.constexpr, PAIRS: gl.constexpr, HEADS: gl.constexpr, LATENT: gl.constexpr):  # fmt: skip
    """PAIRS pairs of dims of all heads. A thread has one head, all splits."""
    layout: gl.constexpr = gl.BlockedLayout([SPLITS, 1, 1], [1, 2, 16], [1, 4, 1], [2, 1, 0])
    by_head: gl.constexpr = gl.SliceLayout(1, layout)
    head = gl.arange(0, HEADS, gl.SliceLayout(0, by_head))
    other = gl.arange(0, SPLITS, gl.SliceLayout(1, by_head))
    row = sequence.to(gl.int64) * splits
    lse = gl.load(lse_ptr + row * HEADS + (other[:, None] * HEADS + head[None, :]), mask=(other < splits)[:, None],
                  other=float("-inf"))  # fmt: skip
    peak = gl.max(lse, 0)
    weight = gl.exp2(lse - gl.where(peak == float("-inf"), 0.0, peak)[None, :])
    total = gl.sum(weight, 0)
    weight = weight * gl.where(total > 0, 1.0 / (1 << SHIFT) / total, 0.0)[None, :]

    pair = part * PAIRS + gl.arange(0, PAIRS, gl.SliceLayout(0, gl.SliceLayout(2, layout)))
    other = gl.arange(0, SPLITS, gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    cell = gl.expand_dims(pair[None, :] * HEADS, 2) + gl.expand_dims(head[None, :], 1)
    place = row * (LATENT // 2 * HEADS) + gl.expand_dims(other[:, None] * (LATENT // 2 * HEADS), 2) + cell
    exists = gl.expand_dims((other < splits)[:, None], 2)
    words = gl.load(partial_ptr.to(gl.pointer_type(gl.uint32), bitcast=True) + place, mask=exists, other=0)
    weight = gl.expand_dims(weight, 1)
    even = gl.sum(words.to(gl.uint16).to(gl.float16, bitcast=True).to(gl.float32) * weight, 0)
    odd = gl.sum((words >> 16).to(gl.uint16).to(gl.float16, bitcast=True).to(gl.float32) * weight, 0)
    out_layout: gl.constexpr = gl.SliceLayout(0, layout)
    pair = part * PAIRS + gl.arange(0, PAIRS, gl.SliceLayout(1, out_layout))[:, None]
    head = gl.arange(0, HEADS, gl.SliceLayout(0, out_layout))[None, :]
    place = sequence.to(gl.int64) * (HEADS * LATENT // 2) + head * (LATENT // 2) + pair
    gl.store(out_ptr.to(gl.pointer_type(gl.int32), bitcast=True) + place, packed_bf16(even, odd))


@gluon.jit
def attend(
    latent_desc,  # (total_kv, (LATENT + ROPE) / 2) uint8, two E2M1 codes each, in blocks [BLOCK_N, LATENT / 2]
    rope_desc,  # the same in blocks [BLOCK_N, ROPE / 2]
    pair_ptr,  # (total_kv, (LATENT + ROPE) / 64) int16: two E8M0 bytes each
    byte_ptr,  # the same as uint8
    q_ptr,  # (batch, HEADS, LATENT + ROPE) bf16
    kv_indptr,  # (batch + 1,) int32; not read if UNIFORM
    out_ptr,  # (batch, HEADS, LATENT) bf16
    partial_ptr,  # (batch, splits, LATENT / 2, HEADS, 2) fp16; this and the next two: if there are several splits
    lse_ptr,  # (batch, splits, HEADS) float32, in log2
    counter_ptr,  # (batch,) int64: how many programs of this stream with so many splits have come to the merge
    score_scale,  # sm_scale * log2(e)
    longest,
    splits,
    UNIFORM: gl.constexpr,  # every sequence has `longest` tokens
    WAITS: gl.constexpr,  # all programs are there at once
    SPLITS: gl.constexpr,  # splits, rounded up to a power of two
    PAIRS: gl.constexpr,  # of dims, that are merged at a time
    ONE_SPLIT: gl.constexpr,
    HEADS: gl.constexpr,
    LATENT: gl.constexpr,
    ROPE: gl.constexpr,
    BLOCK_N: gl.constexpr,
):
    gl.static_assert(LATENT == 512 and ROPE == 64 and BLOCK_N == 64)
    DIM: gl.constexpr = LATENT + ROPE
    BLOCKS: gl.constexpr = DIM // 32  # of 32 values, that a token has
    q_layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    r_layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0])
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 32])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 16])
    panel_layout: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    all_peaks: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 8]], [[0, 2], [0, 4], [1, 0], [2, 0], [0, 0]], [[0, 0], [0, 0]], [], [4, HEADS]
    )

    split = gl.program_id(0)
    sequence = gl.program_id(1)
    if UNIFORM:
        first = sequence * longest
        length = longest
    else:
        first = gl.load(kv_indptr + sequence)
        length = gl.load(kv_indptr + sequence + 1) - first
    span = gl.cdiv(gl.cdiv(length, splits), BLOCK_N) * BLOCK_N
    begin = first + split * span
    end = gl.minimum(begin + span, first + length)
    tiles = gl.cdiv(gl.maximum(end - begin, 0), BLOCK_N)

    codes = gl.allocate_shared_memory(gl.uint8, [BLOCK_N, LATENT // 2], latent_desc.layout)
    rope_codes = gl.allocate_shared_memory(gl.uint8, [BLOCK_N, ROPE // 2], rope_desc.layout)
    code_panels = codes._reinterpret(gl.uint8, [2, BLOCK_N, 128], panel_layout)
    # Separate, so that they need no barriers between the stores to one and to another.
    panel0 = gl.allocate_shared_memory(gl.float8e5, [BLOCK_N, 128], panel_layout)
    panel1 = gl.allocate_shared_memory(gl.float8e5, [BLOCK_N, 128], panel_layout)
    panel2 = gl.allocate_shared_memory(gl.float8e5, [BLOCK_N, 128], panel_layout)
    panel3 = gl.allocate_shared_memory(gl.float8e5, [BLOCK_N, 128], panel_layout)
    q_blocks = gl.allocate_shared_memory(gl.float8e4nv, [4, HEADS, 128], gl.NVMMASharedLayout(128, 8, 3))
    q_smem = q_blocks._reinterpret(gl.float8e4nv, [4, HEADS, 128], panel_layout)
    q_rope_smem = gl.allocate_shared_memory(gl.float8e4nv, [HEADS, ROPE], gl.NVMMASharedLayout(64, 8, 2))
    p_smem = gl.allocate_shared_memory(gl.float16, [BLOCK_N, HEADS], gl.NVMMASharedLayout(32, 16, 2))
    peaks = gl.allocate_shared_memory(gl.float32, [4, HEADS], plain)
    plus_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    plus_smem = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    plus_smem.store(gl.full([1], 0x40404040, gl.int32, plus_layout))  # loaded, so that ptxas keeps it in a register
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, 1)
    thread_barrier()
    load_tile(latent_desc, rope_desc, codes, rope_codes, full, begin, tiles > 0)
    pairs0, pairs1, rope_e8m0 = load_scales(pair_ptr, byte_ptr, begin, end, BLOCKS)
    q_head = gl.arange(0, HEADS, gl.SliceLayout(1, q_layout))
    q_ptr += sequence.to(gl.int64) * (HEADS * DIM)  # 64-bit once; offsets within a sequence fit in 32
    q_row = q_ptr + q_head * DIM
    q = gl.load(q_row[:, None] + gl.arange(0, LATENT, gl.SliceLayout(0, q_layout))[None, :])
    r_head = gl.arange(0, HEADS, gl.SliceLayout(1, r_layout))
    r_row = q_ptr + r_head * DIM + LATENT
    q_rope = gl.load(r_row[:, None] + gl.arange(0, ROPE, gl.SliceLayout(0, r_layout))[None, :])

    # 224 stays below e4m3's greatest value, 448. Keys are decoded to minus their values, so queries are negated.
    q = q.to(gl.float32)
    q_rope = q_rope.to(gl.float32)
    amax = gl.max(gl.abs(q), 1)
    amax = gl.maximum(amax, gl.convert_layout(gl.max(gl.abs(q_rope), 1), amax.type.layout))
    step = gl.maximum(amax, 1e-30) / 224.0
    inverse = -1.0 / step
    q = (q * inverse[:, None]).to(gl.float8e4nv)
    # As keys are decoded: half of the dims, block, its parity, word, half of a word, code.
    q = gl.permute(gl.reshape(q, [HEADS, 2, 4, 2, 4, 2, 4]), (1, 3, 0, 4, 5, 2, 6))
    q_blocks.store(gl.reshape(q, [4, HEADS, 128]))
    q_rope = (q_rope * gl.convert_layout(inverse, gl.SliceLayout(1, r_layout))[:, None]).to(gl.float8e4nv)
    q_rope = gl.permute(gl.reshape(q_rope, [HEADS, 4, 2, 2, 4]), (0, 2, 3, 1, 4))
    q_rope_smem.store(gl.reshape(q_rope, [HEADS, ROPE]))
    fence_async_shared()
    score_scale = gl.convert_layout(step, gl.SliceLayout(0, s_layout)) * (score_scale / (1 << SHIFT))
    thread_barrier()

    plus = gl.max(plus_smem.load(plus_layout), 0)
    token = gl.arange(0, BLOCK_N, gl.SliceLayout(1, s_layout))
    peak = gl.full([HEADS], float("-inf"), gl.float32, gl.SliceLayout(0, s_layout))
    totals = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)  # of each row of the tile
    none = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)
    acc0 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc1 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc2 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc3 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc4 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc5 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc6 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc7 = gl.zeros([64, HEADS], gl.float32, o_layout)
    for tile in range(tiles):
        mbarrier.wait(full, tile & 1)
        even, odd = load_codes(code_panels.index(0))
        keys = decode_latent(even, pairs0.to(gl.int32) & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(0).permute((1, 0)), none, use_acc=False, is_async=True)
        panel0.store(keys)
        keys = decode_latent(odd, pairs0.to(gl.int32) >> 8 & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(1).permute((1, 0)), score, is_async=True)
        panel1.store(keys)
        score = warpgroup_mma_wait(1, deps=[score])
        even, odd = load_codes(code_panels.index(1))
        keys = decode_latent(even, pairs1.to(gl.int32) & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(2).permute((1, 0)), score, is_async=True)
        panel2.store(keys)
        score = warpgroup_mma_wait(1, deps=[score])
        keys = decode_latent(odd, pairs1.to(gl.int32) >> 8 & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(3).permute((1, 0)), score, is_async=True)
        panel3.store(keys)
        score = warpgroup_mma_wait(1, deps=[score])
        # The fp8 instruction loses what is small beside its largest summand. Those of the rope dims may be large: last.
        keys = decode_rope(rope_codes, rope_e8m0, plus, none)
        score = warpgroup_mma(keys, q_rope_smem.permute((1, 0)), score, is_async=True)
        row = begin + tile * BLOCK_N
        pairs0, pairs1, rope_e8m0 = load_scales(pair_ptr, byte_ptr, row + BLOCK_N, end, BLOCKS)
        score = warpgroup_mma_wait(0, deps=[score])

        score = gl.where((row + token < end)[:, None], score, float("-inf"))
        peaks.store(gl.max(gl.reshape(score, [4, 16, HEADS]), 1))  # of each warp
        thread_barrier()  # also: codes are read, and values written
        load_tile(latent_desc, rope_desc, codes, rope_codes, full, row + BLOCK_N, tile + 1 < tiles)
        highest = gl.convert_layout(gl.max(peaks.load(all_peaks), 0), gl.SliceLayout(0, s_layout))
        new_peak = gl.maximum(peak, highest * score_scale)
        shrink = gl.exp2(peak - new_peak)
        weight = gl.exp2(score * score_scale[None, :] - new_peak[None, :])
        totals = totals * shrink[None, :] + weight
        peak = new_peak
        p_smem.store(weight.to(gl.float16))
        shrink = gl.convert_layout(shrink, gl.SliceLayout(0, o_layout))[None, :]
        acc0 = acc0 * shrink
        acc1 = acc1 * shrink
        acc2 = acc2 * shrink
        acc3 = acc3 * shrink
        acc4 = acc4 * shrink
        acc5 = acc5 * shrink
        acc6 = acc6 * shrink
        acc7 = acc7 * shrink
        fence_async_shared()
        thread_barrier()
        # Loaded one panel ahead. Each product waits for the last but one: more in flight take registers that lack.
        pairs = load_values(panel0, o_layout, 0)
        for part in gl.static_range(BLOCK_N // TOKENS):
            p = p_smem.slice(part * TOKENS, TOKENS, 0)
            later = load_values(panel1, o_layout, part * TOKENS)
            acc0 = warpgroup_mma(first_bytes(pairs), p, acc0, is_async=True)
            acc6 = warpgroup_mma_wait(1, deps=[acc6])
            acc1 = warpgroup_mma(second_bytes(pairs), p, acc1, is_async=True)
            acc7 = warpgroup_mma_wait(1, deps=[acc7])
            pairs = later
            later = load_values(panel2, o_layout, part * TOKENS)
            acc2 = warpgroup_mma(first_bytes(pairs), p, acc2, is_async=True)
            acc0 = warpgroup_mma_wait(1, deps=[acc0])
            acc3 = warpgroup_mma(second_bytes(pairs), p, acc3, is_async=True)
            acc1 = warpgroup_mma_wait(1, deps=[acc1])
            pairs = later
            later = load_values(panel3, o_layout, part * TOKENS)
            acc4 = warpgroup_mma(first_bytes(pairs), p, acc4, is_async=True)
            acc2 = warpgroup_mma_wait(1, deps=[acc2])
            acc5 = warpgroup_mma(second_bytes(pairs), p, acc5, is_async=True)
            acc3 = warpgroup_mma_wait(1, deps=[acc3])
            pairs = later
            if part + 1 < BLOCK_N // TOKENS:
                later = load_values(panel0, o_layout, (part + 1) * TOKENS)
            acc6 = warpgroup_mma(first_bytes(pairs), p, acc6, is_async=True)
            acc4 = warpgroup_mma_wait(1, deps=[acc4])
            acc7 = warpgroup_mma(second_bytes(pairs), p, acc7, is_async=True)
            acc5 = warpgroup_mma_wait(1, deps=[acc5])
            pairs = later
        acc0, acc1, acc2, acc3, acc4, acc5, acc6, acc7 = warpgroup_mma_wait(
            0, deps=[acc0, acc1, acc2, acc3, acc4, acc5, acc6, acc7]
        )
        thread_barrier()  # all warps have read the values: their place is free

    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    total = gl.sum(totals, 0)
    factor = gl.where(total > 0, (-1.0 / (1 << SHIFT) if ONE_SPLIT else -1.0) / total, 0.0)
    factor = gl.convert_layout(factor, gl.SliceLayout(0, o_layout))[None, :]
    row = (sequence * splits + split).to(gl.int64)
    place = out_ptr + row * (HEADS * LATENT) if ONE_SPLIT else partial_ptr + row * (HEADS * LATENT)
    store_panel(place, acc0, acc1, factor, 0, ONE_SPLIT, HEADS, LATENT)
    store_panel(place, acc2, acc3, factor, 1, ONE_SPLIT, HEADS, LATENT)
    store_panel(place, acc4, acc5, factor, 2, ONE_SPLIT, HEADS, LATENT)
    store_panel(place, acc6, acc7, factor, 3, ONE_SPLIT, HEADS, LATENT)
    if not ONE_SPLIT:
        head = gl.arange(0, HEADS, gl.SliceLayout(0, s_layout))
        gl.store(lse_ptr + row * HEADS + head, gl.where(total > 0, peak + gl.log2(total), float("-inf")))
        PARTS: gl.constexpr = LATENT // 2 // PAIRS
        before = arrive(counter_ptr + sequence)
        if WAITS:
            wait_for(counter_ptr + sequence, before - before % splits + splits)  # a launch adds `splits`
            first_part = split
            end_part = gl.minimum(split + 1, PARTS)
        else:
            first_part = 0
            end_part = PARTS if before % splits == splits - 1 else 0  # the last merges all
        for part in range(first_part, end_part):
            merge_slice(partial_ptr, lse_ptr, out_ptr, sequence, part, splits, SPLITS, PAIRS, HEADS, LATENT)


def custom_kernel(data):
    return launch(data)


def launch(data, per_multiprocessor=None):
    """What `custom_kernel` does, with other choices than its own. Raises NoDevice without a Hopper GPU."""
    q, kv_data, _, kv_indptr, config = data
    if q.device.type != "cuda" or torch.version.hip is not None or torch.cuda.get_device_capability(q.device)[0] != 9:
        raise NoDevice("gluon_mxfp4 needs a Hopper GPU (sm_90): its instructions exist nowhere else")
    packed, e8m0 = (tensor.view(torch.uint8) for tensor in kv_data["mxfp4"])
    packed = packed.view(-1, (LATENT + ROPE) // 2)
    batch, longest = q.shape[0], config["kv_seq_len"]
    out = torch.empty(batch, HEADS, LATENT, dtype=torch.bfloat16, device=q.device)
    if longest == 0:
        return out.zero_()
    splits = choose_splits(q, triton.cdiv(longest, BLOCK_N), per_multiprocessor)
    places = PLACES * torch.cuda.get_device_properties(q.device).multi_processor_count
    waits = 1 < splits <= places // batch
    partial, lse, counter = out, out, out
    if splits > 1:
        partial = torch.empty(batch, splits, LATENT // 2, HEADS, 2, dtype=torch.float16, device=q.device)
        lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)
        counter = counters(q.device, torch.cuda.current_stream(q.device).cuda_stream, splits)

    def descriptor(dims):
        block = [BLOCK_N, dims // 2]
        return TensorDescriptor.from_tensor(packed, block, gl.NVMMASharedLayout.get_default_for(block, gl.uint8))

    attend[(splits, batch)](
        descriptor(LATENT), descriptor(ROPE), e8m0.view(torch.int16), e8m0, q, kv_indptr, out, partial, lse, counter,
        config["sm_scale"] * LOG2_E, longest, splits, UNIFORM=packed.shape[0] == batch * longest, WAITS=waits,
        SPLITS=triton.next_power_of_2(splits), PAIRS=triton.next_power_of_2(max(triton.cdiv(LATENT // 2, splits), 4)),
        ONE_SPLIT=splits == 1, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=BLOCK_N,
        num_warps=4, maxnreg=168, launch_cooperative_grid=waits,
    )  # fmt: skip
    return out


@functools.cache
def counters(device, stream, splits):
    """One a sequence: where they are split, at most half as many as programs, of which there are 2 * PLACES at most."""
    count = PLACES * torch.cuda.get_device_properties(device).multi_processor_count
    return torch.zeros(count, dtype=torch.int64, device=device)


def choose_splits(q, tiles, per_multiprocessor=None):
    """How many programs share the tokens of a sequence of so many tiles."""
    multiprocessors = torch.cuda.get_device_properties(q.device).multi_processor_count
    for each, least in [(per_multiprocessor, 1)] if per_multiprocessor else choices(q.shape[0], multiprocessors):
        splits = max(min(each * multiprocessors // q.shape[0], tiles, MAX_SPLITS), 1)
        if tiles >= least * splits:
            break
    return triton.cdiv(tiles, triton.cdiv(tiles, splits))  # without those that would be empty


def choices(batch, multiprocessors):
    """Programs a multiprocessor, and the tiles that each must have at least, in the order of preference."""
    places = PLACES * multiprocessors
    if batch <= 2 * multiprocessors and places // batch * batch < 0.75 * places:
        yield 6, 32  # twice as many programs as places, where as many programs would leave many places empty
    yield from LEAST_TILES.items()

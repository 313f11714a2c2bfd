"""MLA decode on the mxfp4 cache, for Hopper in Gluon: warpgroups decode each code once and leave the output to another.

Idea. As in gluon_fp8.py: all 16 heads of a sequence in one program, scores S^T [tokens, heads] = K Q^T and output
O^T [dims, heads] = V^T P^T, a sequence cut into splits, whose programs wait for each other and merge a share of the
dims each; where not all have a place at once, the last of a sequence merges all of them. What the instructions do is
decoding, so a tile's codes are decoded once, for keys and values alike, and with their scale in them:

    e5m2      holds an E2M1 value times a power of two exactly, and both products are of the fp8 instruction
    table     the eight magnitudes of a block, times its scale, are eight bytes: two registers. A byte permutation takes
              four codes to four bytes; a second one, from a table of 0x40 alone, gives 0x40 for each code without a
              sign, since it replicates the (zero) sign of the byte where the code's highest bit is set. Twice that plus
              the magnitude is minus the value: 9 instructions for 8 codes. The queries are negated for it, and in
              the end the output.
    keys      as threads decode them: a thread takes the 16 bytes of a whole block of a token, so two registers of
              table do for 32 codes, and the bytes lie as the fp8 instruction wants its operand in registers if the
              queries' dims are permuted likewise
    values    the same registers, with bytes of tokens t and t + 8 brought together by two permutations for 8 values,
              and transposed on the way to shared memory (stmatrix). There they are the fp8 instruction's operand.

Steps. Two or three warpgroups decode, each every second or third tile: codes come by TMA two of its tiles ahead, scales
one. It decodes, scores, and stores values and softmax weights. One more warpgroup multiplies these and adds the tile's
product to the output in float32; it also asks TMA for the codes to come. The decoders share one running maximum, which
goes from tile to tile, so that the output has one factor a tile.

The queries are rounded to e4m3 by a scale a head, the weights to e4m3, of which the largest is 256. Keys and values are
exact while a block's E8M0 byte is 110 to 136, that is for scales from 2^-17 to 2^9; a scale below is taken as 2^-18,
one above as 2^9.

Tiles. 64 tokens, 18 KiB of codes. One program a multiprocessor: three decoders with 128 registers a thread and 219 KiB
for many tiles, two with 168 registers and 149 KiB for few, since those start sooner.

Bytes. 306 a token, and 32 KiB a (sequence, split) for the partial results, which are fp16. No single unit limits it:
without decoding, and likewise without the second product, it took 12 to 14 % less time (H200, an earlier form). A tile
takes a decoder's warp 690 instructions, half of them permutations, masks, shifts and comparisons, whose unit has half
of the schedulers' rate. docs/kernels.md has what was measured, and what was slower. Only for Hopper (sm_90): elsewhere
see triton_mxfp4.py.
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
REGISTERS = {2: 168, 3: 128}  # a thread, by the decoders: all that a multiprocessor has
TILES_FOR_THREE = 60  # a program: from so many on three decoders are faster than two
MAX_SPLITS = 64
PROGRAM_TILES = 5  # a program starts and ends in the time of so many tiles
LOG2_E = 1.4426950408889634
SHIFT = gl.constexpr(4)  # decoded values are 2^SHIFT of themselves: e5m2's range lies around 2^0 then
LOG2_WEIGHT = gl.constexpr(8.0)  # of the largest softmax weight: e4m3 ends at 448
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
def halves(x):
    """Of 64 tokens, 16 a warp, those of its first 8 and those of its last 8: a thread has both of a pair."""
    x = gl.permute(gl.reshape(x, [4, 2, 8, x.shape[1]]), (0, 2, 3, 1))
    return gl.split(x)


@gluon.jit
def store_values(keys, place):
    """Keys [64 tokens, 128] as values [128, pairs of tokens t, t + 8], whose bytes are the fp8 instruction's operand.

    Of 16 keys, first the even ones and then the odd ones: a thread has both of a pair in its output, and stmatrix
    stores eight rows that follow each other.
    """
    first, last = halves(keys)
    pairs = gl.inline_asm_elementwise(
        """
        {
            prmt.b32 $0, $2, $3, 0x6240;
            prmt.b32 $1, $2, $3, 0x7351;
        }
        """,
        "=&r,=r,r,r",
        [first, last],
        dtype=gl.int16,
        is_pure=True,
        pack=4,
    )
    pairs = gl.permute(gl.reshape(pairs, [32, 8, 4, 2, 2]), (1, 3, 2, 4, 0))
    place.store(gl.reshape(pairs, [128, 32]))


@gluon.jit
def store_weights(weight, place):
    first, last = halves(weight)
    pairs = gl.inline_asm_elementwise(
        """
        {
            .reg .b16 a, b;
            cvt.rn.satfinite.e4m3x2.f32 a, $3, $1;
            cvt.rn.satfinite.e4m3x2.f32 b, $4, $2;
            mov.b32 $0, {a, b};
        }
        """,
        "=r,f,f,f,f",
        [first, last],
        dtype=gl.int16,
        is_pure=True,
        pack=2,
    )
    place.store(gl.permute(gl.reshape(pairs, [32, 16]), (1, 0)))


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
def store_half(out_ptr, acc, factor, PANEL: gl.constexpr, HALF: gl.constexpr, ONE_SPLIT: gl.constexpr,
               HEADS: gl.constexpr, LATENT: gl.constexpr):  # fmt: skip
    """64 dims of the output. Partial results lie [pairs of dims, heads], about as registers hold them."""
    even, odd = halves(acc * factor)
    even = gl.reshape(even, [32, HEADS])
    odd = gl.reshape(odd, [32, HEADS])
    layout: gl.constexpr = even.type.layout
    row = 32 * HALF + gl.arange(0, 32, gl.SliceLayout(1, layout))[:, None]  # a pair of bytes: in decode_latent's order
    block = PANEL // 2 * 8 + row // 2 % 4 * 2 + PANEL % 2
    pair = block * 16 + row // 16 * 4 + row // 8 % 2 * 2 + row % 2
    head = gl.arange(0, HEADS, gl.SliceLayout(0, layout))[None, :]
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
def decode_and_score(
    decoding,
    DECODER: gl.constexpr, DECODERS: gl.constexpr, HEADS: gl.constexpr, BLOCKS: gl.constexpr, BLOCK_N: gl.constexpr,
):  # fmt: skip
    """Of every DECODERS-th tile: decode it, score it, and leave its values and weights to `add_up`."""
    (
        pair_ptr, byte_ptr, begin, end, tiles, score_scale, steps, plus_smem, code_panels, rope_codes, full, q_smem,
        q_rope_smem, panel0, panel1, panel2, panel3, p_pairs, warp_peaks, peaks, shrinks, v_full, v_empty, last_peaks,
        last_totals, done,
    ) = decoding  # fmt: skip
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 32])
    all_peaks: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 8]], [[0, 2], [0, 4], [1, 0], [2, 0], [0, 0]], [[0, 0], [0, 0]], [], [4, HEADS]
    )
    BEFORE: gl.constexpr = (DECODER + DECODERS - 1) % DECODERS  # the decoder of the tile before
    plus_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    plus = gl.max(plus_smem.load(plus_layout), 0)
    score_scale = steps.load(gl.SliceLayout(0, s_layout)) * score_scale
    token = gl.arange(0, BLOCK_N, gl.SliceLayout(1, s_layout))
    peak = gl.full([HEADS], float("-inf"), gl.float32, gl.SliceLayout(0, s_layout))
    totals = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)  # of each row of the tile
    none = gl.zeros([BLOCK_N, HEADS], gl.float32, s_layout)
    turns = gl.cdiv(gl.maximum(tiles - DECODER, 0), DECODERS)
    pairs0, pairs1, rope_e8m0 = load_scales(pair_ptr, byte_ptr, begin + DECODER * BLOCK_N, end, BLOCKS)
    for turn in range(turns):
        slot = DECODER + (turn & 1) * DECODERS
        row = begin + (DECODER + turn * DECODERS) * BLOCK_N
        next0, next1, next_rope = load_scales(pair_ptr, byte_ptr, row + DECODERS * BLOCK_N, end, BLOCKS)
        mbarrier.wait(full.index(slot), turn // 2 & 1)
        even, odd = load_codes(code_panels.index(2 * slot))
        keys = decode_latent(even, pairs0.to(gl.int32) & 0xFF, plus, none)
        mbarrier.wait(v_empty.index(DECODER), turn & 1 ^ 1)
        score = warpgroup_mma(keys, q_smem.index(0).permute((1, 0)), none, use_acc=False, is_async=True)
        store_values(keys, panel0.index(DECODER))
        keys = decode_latent(odd, pairs0.to(gl.int32) >> 8 & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(1).permute((1, 0)), score, is_async=True)
        store_values(keys, panel1.index(DECODER))
        score = warpgroup_mma_wait(1, deps=[score])
        even, odd = load_codes(code_panels.index(2 * slot + 1))
        keys = decode_latent(even, pairs1.to(gl.int32) & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(2).permute((1, 0)), score, is_async=True)
        store_values(keys, panel2.index(DECODER))
        score = warpgroup_mma_wait(1, deps=[score])
        keys = decode_latent(odd, pairs1.to(gl.int32) >> 8 & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(3).permute((1, 0)), score, is_async=True)
        store_values(keys, panel3.index(DECODER))
        score = warpgroup_mma_wait(1, deps=[score])
        # The fp8 instruction loses what is small beside its largest summand. Those of the rope dims may be large: last.
        keys = decode_rope(rope_codes.index(slot), rope_e8m0, plus, none)
        score = warpgroup_mma(keys, q_rope_smem.permute((1, 0)), score, is_async=True)
        score = warpgroup_mma_wait(0, deps=[score])
        pairs0 = next0
        pairs1 = next1
        rope_e8m0 = next_rope

        score = gl.where((row + token < end)[:, None], score, float("-inf"))
        warp_peaks.index(DECODER).store(gl.max(gl.reshape(score, [4, 16, HEADS]), 1))
        thread_barrier()
        highest = gl.convert_layout(gl.max(warp_peaks.index(DECODER).load(all_peaks), 0), gl.SliceLayout(0, s_layout))
        # All decoders share one peak, that of all tiles so far, so that `add_up` needs one factor a tile.
        mbarrier.wait(v_full.index(BEFORE), turn + (1 if DECODER == 0 else 0) & 1)
        so_far = peaks.index(BEFORE).load(gl.SliceLayout(0, s_layout))
        new_peak = gl.maximum(so_far, highest * score_scale)
        shrink = gl.exp2(peak - new_peak)
        weight = gl.exp2(score * score_scale[None, :] - (new_peak - LOG2_WEIGHT)[None, :])
        totals = totals * shrink[None, :] + weight
        peak = new_peak
        store_weights(weight, p_pairs.index(DECODER))
        peaks.index(DECODER).store(peak)
        shrinks.index(DECODER).store(gl.exp2(so_far - peak))
        fence_async_shared()
        thread_barrier()
        mbarrier.arrive(v_full.index(DECODER))  # also: its codes are read
    last_peaks.index(DECODER).store(peak)
    last_totals.index(DECODER).store(gl.sum(totals, 0))
    thread_barrier()
    mbarrier.arrive(done)


@gluon.jit
def add_up(
    adding,
    DECODERS: gl.constexpr, BLOCK_N: gl.constexpr, WAITS: gl.constexpr, SPLITS: gl.constexpr, PAIRS: gl.constexpr,
    ONE_SPLIT: gl.constexpr, HEADS: gl.constexpr, LATENT: gl.constexpr,
):  # fmt: skip
    """Values times weights, tile by tile. It asks for the codes to come, and in the end stores and merges."""
    (
        latent_desc, rope_desc, codes, rope_codes, full, begin, tiles, values0, values1, values2, values3, p_bytes,
        shrinks, v_full, v_empty, last_peaks, last_totals, done, out_ptr, partial_ptr, lse_ptr, counter_ptr, sequence,
        split, splits,
    ) = adding  # fmt: skip
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEADS, 32])
    by_head: gl.constexpr = gl.SliceLayout(0, o_layout)
    nothing = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc0 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc1 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc2 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc3 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc4 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc5 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc6 = gl.zeros([64, HEADS], gl.float32, o_layout)
    acc7 = gl.zeros([64, HEADS], gl.float32, o_layout)
    for tile in range(tiles):
        decoder = tile % DECODERS
        slot = tile % (2 * DECODERS)
        mbarrier.wait(v_full.index(decoder), tile // DECODERS & 1)
        load_tile(
            latent_desc,
            rope_desc,
            codes.index(slot),
            rope_codes.index(slot),
            full.index(slot),
            begin + (tile + 2 * DECODERS) * BLOCK_N,
            tile + 2 * DECODERS < tiles,
        )
        # A sum a tile, added in float32: the fp8 instruction loses what is small beside what is there.
        p = p_bytes.index(decoder).permute((1, 0))
        sum0 = warpgroup_mma(values0.index(decoder).slice(0, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum1 = warpgroup_mma(values0.index(decoder).slice(64, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum2 = warpgroup_mma(values1.index(decoder).slice(0, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum3 = warpgroup_mma(values1.index(decoder).slice(64, 64, 0), p, nothing, use_acc=False, is_async=True)
        shrink = shrinks.index(decoder).load(by_head)[None, :]
        sum0 = warpgroup_mma_wait(3, deps=[sum0])
        acc0 = acc0 * shrink + sum0
        sum4 = warpgroup_mma(values2.index(decoder).slice(0, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum1 = warpgroup_mma_wait(3, deps=[sum1])
        acc1 = acc1 * shrink + sum1
        sum5 = warpgroup_mma(values2.index(decoder).slice(64, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum2 = warpgroup_mma_wait(3, deps=[sum2])
        acc2 = acc2 * shrink + sum2
        sum6 = warpgroup_mma(values3.index(decoder).slice(0, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum3 = warpgroup_mma_wait(3, deps=[sum3])
        acc3 = acc3 * shrink + sum3
        sum7 = warpgroup_mma(values3.index(decoder).slice(64, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum4 = warpgroup_mma_wait(3, deps=[sum4])
        acc4 = acc4 * shrink + sum4
        sum5 = warpgroup_mma_wait(2, deps=[sum5])
        acc5 = acc5 * shrink + sum5
        sum6 = warpgroup_mma_wait(1, deps=[sum6])
        acc6 = acc6 * shrink + sum6
        sum7 = warpgroup_mma_wait(0, deps=[sum7])
        acc7 = acc7 * shrink + sum7
        thread_barrier()
        mbarrier.arrive(v_empty.index(decoder))
    mbarrier.wait(done, 0)
    # A split without tokens has total 0: zeros, and a log-sum-exp of -inf, which the merge gives weight 0.
    peak = gl.full([HEADS], float("-inf"), gl.float32, by_head)
    for decoder in gl.static_range(DECODERS):
        peak = gl.maximum(peak, last_peaks.index(decoder).load(by_head))
    total = gl.zeros([HEADS], gl.float32, by_head)
    for decoder in gl.static_range(DECODERS):
        own = last_peaks.index(decoder).load(by_head)
        total += gl.where(own > float("-inf"), last_totals.index(decoder).load(by_head) * gl.exp2(own - peak), 0.0)
    factor = gl.where(total > 0, (-1.0 / (1 << SHIFT) if ONE_SPLIT else -1.0) / total, 0.0)[None, :]
    row = (sequence * splits + split).to(gl.int64)
    place = out_ptr + row * (HEADS * LATENT) if ONE_SPLIT else partial_ptr + row * (HEADS * LATENT)
    store_half(place, acc0, factor, 0, 0, ONE_SPLIT, HEADS, LATENT)
    store_half(place, acc1, factor, 0, 1, ONE_SPLIT, HEADS, LATENT)
    store_half(place, acc2, factor, 1, 0, ONE_SPLIT, HEADS, LATENT)
    store_half(place, acc3, factor, 1, 1, ONE_SPLIT, HEADS, LATENT)
    store_half(place, acc4, factor, 2, 0, ONE_SPLIT, HEADS, LATENT)
    store_half(place, acc5, factor, 2, 1, ONE_SPLIT, HEADS, LATENT)
    store_half(place, acc6, factor, 3, 0, ONE_SPLIT, HEADS, LATENT)
    store_half(place, acc7, factor, 3, 1, ONE_SPLIT, HEADS, LATENT)
    if not ONE_SPLIT:
        head = gl.arange(0, HEADS, by_head)
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
    DECODERS: gl.constexpr,
    REGISTERS: gl.constexpr,
):
    gl.static_assert(LATENT == 512 and ROPE == 64 and BLOCK_N == 64)
    DIM: gl.constexpr = LATENT + ROPE
    BLOCKS: gl.constexpr = DIM // 32  # of 32 values, that a token has
    q_layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    r_layout: gl.constexpr = gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0])
    pair_layout: gl.constexpr = gl.NVMMASharedLayout(64, 16, 2)
    byte_layout: gl.constexpr = gl.NVMMASharedLayout(64, 8, 2)
    panel_layout: gl.constexpr = gl.NVMMASharedLayout(128, 8, 2)
    by_head: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])

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

    codes = gl.allocate_shared_memory(gl.uint8, [2 * DECODERS, BLOCK_N, LATENT // 2], latent_desc.layout)
    rope_codes = gl.allocate_shared_memory(gl.uint8, [2 * DECODERS, BLOCK_N, ROPE // 2], rope_desc.layout)
    code_panels = codes._reinterpret(gl.uint8, [4 * DECODERS, BLOCK_N, 128], panel_layout)
    full = gl.allocate_shared_memory(gl.int64, [2 * DECODERS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [DECODERS, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [DECODERS, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for each in gl.static_range(2 * DECODERS):
        mbarrier.init(full.index(each), 1)
    for each in gl.static_range(DECODERS):
        mbarrier.init(v_full.index(each), 1)
        mbarrier.init(v_empty.index(each), 1)
    mbarrier.init(done, DECODERS)
    thread_barrier()
    for tile in gl.static_range(2 * DECODERS):
        load_tile(
            latent_desc,
            rope_desc,
            codes.index(tile),
            rope_codes.index(tile),
            full.index(tile),
            begin + tile * BLOCK_N,
            tile < tiles,
        )

    # Separate, so that they need no barriers between the stores to one and to another.
    panel0 = gl.allocate_shared_memory(gl.int16, [DECODERS, 128, BLOCK_N // 2], pair_layout)
    panel1 = gl.allocate_shared_memory(gl.int16, [DECODERS, 128, BLOCK_N // 2], pair_layout)
    panel2 = gl.allocate_shared_memory(gl.int16, [DECODERS, 128, BLOCK_N // 2], pair_layout)
    panel3 = gl.allocate_shared_memory(gl.int16, [DECODERS, 128, BLOCK_N // 2], pair_layout)
    values0 = panel0._reinterpret(gl.float8e5, [DECODERS, 128, BLOCK_N], byte_layout)
    values1 = panel1._reinterpret(gl.float8e5, [DECODERS, 128, BLOCK_N], byte_layout)
    values2 = panel2._reinterpret(gl.float8e5, [DECODERS, 128, BLOCK_N], byte_layout)
    values3 = panel3._reinterpret(gl.float8e5, [DECODERS, 128, BLOCK_N], byte_layout)
    p_pairs = gl.allocate_shared_memory(gl.int16, [DECODERS, HEADS, BLOCK_N // 2], pair_layout)
    p_bytes = p_pairs._reinterpret(gl.float8e4nv, [DECODERS, HEADS, BLOCK_N], byte_layout)
    q_blocks = gl.allocate_shared_memory(gl.float8e4nv, [4, HEADS, 128], gl.NVMMASharedLayout(128, 8, 3))
    q_smem = q_blocks._reinterpret(gl.float8e4nv, [4, HEADS, 128], panel_layout)
    q_rope_smem = gl.allocate_shared_memory(gl.float8e4nv, [HEADS, ROPE], gl.NVMMASharedLayout(64, 8, 2))
    warp_peaks = gl.allocate_shared_memory(gl.float32, [DECODERS, 4, HEADS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    peaks = gl.allocate_shared_memory(gl.float32, [DECODERS, HEADS], by_head)
    shrinks = gl.allocate_shared_memory(gl.float32, [DECODERS, HEADS], by_head)
    last_peaks = gl.allocate_shared_memory(gl.float32, [DECODERS, HEADS], by_head)
    last_totals = gl.allocate_shared_memory(gl.float32, [DECODERS, HEADS], by_head)
    steps = gl.allocate_shared_memory(gl.float32, [HEADS], by_head)
    plus_layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    plus_smem = gl.allocate_shared_memory(gl.int32, [1], by_head)
    plus_smem.store(gl.full([1], 0x40404040, gl.int32, plus_layout))  # loaded, so that ptxas keeps it in a register
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
    steps.store(step)
    for each in gl.static_range(DECODERS):
        peaks.index(each).store(gl.full([HEADS], float("-inf"), gl.float32, gl.SliceLayout(1, q_layout)))
    fence_async_shared()
    thread_barrier()

    adding = (
        latent_desc, rope_desc, codes, rope_codes, full, begin, tiles, values0, values1, values2, values3, p_bytes,
        shrinks, v_full, v_empty, last_peaks, last_totals, done, out_ptr, partial_ptr, lse_ptr, counter_ptr, sequence,
        split, splits,
    )  # fmt: skip
    decoding = (
        pair_ptr, byte_ptr, begin, end, tiles, score_scale / (1 << SHIFT), steps, plus_smem, code_panels, rope_codes,
        full, q_smem, q_rope_smem, panel0, panel1, panel2, panel3, p_pairs, warp_peaks, peaks, shrinks, v_full,
        v_empty, last_peaks, last_totals, done,
    )  # fmt: skip
    if DECODERS == 2:
        gl.warp_specialize(
            [
                (add_up, (adding, DECODERS, BLOCK_N, WAITS, SPLITS, PAIRS, ONE_SPLIT, HEADS, LATENT)),
                (decode_and_score, (decoding, 0, DECODERS, HEADS, BLOCKS, BLOCK_N)),
                (decode_and_score, (decoding, 1, DECODERS, HEADS, BLOCKS, BLOCK_N)),
            ],
            [4, 4],
            [REGISTERS, REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (add_up, (adding, DECODERS, BLOCK_N, WAITS, SPLITS, PAIRS, ONE_SPLIT, HEADS, LATENT)),
                (decode_and_score, (decoding, 0, DECODERS, HEADS, BLOCKS, BLOCK_N)),
                (decode_and_score, (decoding, 1, DECODERS, HEADS, BLOCKS, BLOCK_N)),
                (decode_and_score, (decoding, 2, DECODERS, HEADS, BLOCKS, BLOCK_N)),
            ],
            [4, 4, 4],
            [REGISTERS, REGISTERS, REGISTERS],
        )


def custom_kernel(data):
    return launch(data)


def launch(data, decoders=None, splits=None):
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
    multiprocessors = torch.cuda.get_device_properties(q.device).multi_processor_count
    tiles = triton.cdiv(longest, BLOCK_N)
    splits = splits or choose_splits(batch, tiles, multiprocessors)
    decoders = decoders or (3 if tiles >= TILES_FOR_THREE * splits else 2)
    waits = 1 < splits <= multiprocessors // batch
    partial, lse, counter = out, out, out
    if splits > 1:
        partial = torch.empty(batch, splits, LATENT // 2, HEADS, 2, dtype=torch.float16, device=q.device)
        lse = torch.empty(batch, splits, HEADS, dtype=torch.float32, device=q.device)
        counter = counters(q.device, torch.cuda.current_stream(q.device).cuda_stream, splits, batch)

    def descriptor(dims):
        block = [BLOCK_N, dims // 2]
        return TensorDescriptor.from_tensor(packed, block, gl.NVMMASharedLayout.get_default_for(block, gl.uint8))

    attend[(splits, batch)](
        descriptor(LATENT), descriptor(ROPE), e8m0.view(torch.int16), e8m0, q, kv_indptr, out, partial, lse, counter,
        config["sm_scale"] * LOG2_E, longest, splits, UNIFORM=packed.shape[0] == batch * longest, WAITS=waits,
        SPLITS=triton.next_power_of_2(splits), PAIRS=triton.next_power_of_2(max(triton.cdiv(LATENT // 2, splits), 4)),
        ONE_SPLIT=splits == 1, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=BLOCK_N, DECODERS=decoders,
        REGISTERS=REGISTERS[decoders], num_warps=4, maxnreg=REGISTERS[decoders], launch_cooperative_grid=waits,
    )  # fmt: skip
    return out


@functools.cache
def counters(device, stream, splits, batch):
    """One a sequence. They only grow: by `splits` a launch."""
    return torch.zeros(batch, dtype=torch.int64, device=device)


@functools.cache  # trying all takes longer than the kernel's launch
def choose_splits(batch, tiles, multiprocessors):
    """How many programs share the tokens of a sequence of so many tiles: those that take the least time.

    A multiprocessor has a place for one program. Programs run in rounds, each as long as a program's tiles and
    PROGRAM_TILES more.
    """

    def time(splits):
        return -(-batch * splits // multiprocessors) * (-(-tiles // splits) + PROGRAM_TILES)

    return min(range(1, min(tiles, MAX_SPLITS) + 1), key=time)

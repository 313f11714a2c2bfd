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

Steps. One to three warpgroups decode, of two or three each every second or third tile: codes come by TMA two of its
tiles ahead, scales one. It decodes, scores, and stores values and softmax weights. One more warpgroup multiplies these
and adds the tile's product to the output in float32; it also asks TMA for the codes to come. Several decoders share one
running maximum, which goes from tile to tile, so that the output has one factor a tile.

The queries are rounded to e4m3 by a scale a head, the weights to e4m3, of which the largest is 256. Keys and values are
exact while a block's E8M0 byte is 110 to 136, that is for scales from 2^-17 to 2^9; a scale below is taken as 2^-18,
one above as 2^9.

Tiles. 64 tokens, 18 KiB of codes. A multiprocessor has one program of three decoders (128 registers a thread, 219 KiB)
or of two (168, 149 KiB), or two programs of one (128, 112 KiB). Three decode fastest, two start sooner. With two
programs one starts and ends while the other decodes: where there are several rounds of programs, that is fastest. A
model of these times chooses (COSTS).

Short caches, up to 1024 tokens and at least 16 multiprocessors a sequence: a kernel of its own, in CUDA C++ (SHORT),
where the device grants clusters of 16. It is that of gluon_fp8.py with other tokens: a cluster shares a sequence, each
of its programs has at most 64 tokens and a warp 8 of them, both products are mma.sync's on fp16, and partial results go
straight into the shared memory of the programs that merge them. Codes come straight into registers, each lane's from
whole blocks of one token, so that a table serves 32 codes. They are decoded once: e5m2 is the upper byte of fp16, so
one permutation and one mask widen 4 bytes as keys, and the same bytes lie in shared memory as values. Partial results
are bf16, since values times 64 weights may exceed fp16. What limits it is the chain of what comes once: launch, tokens,
decoding, two products, exchange. On an H200 it takes 0.72 to 0.77 of the other kernel's time for up to 4 sequences, and
0.90 to 0.94 for 8.

Bytes. 306 a token, and 32 KiB a (sequence, split) for the partial results, which are fp16. No single unit limits it:
without decoding, and likewise without the second product, it took 12 to 14 % less time (H200, an earlier form). A tile
takes a decoder's warp 690 instructions, half of them permutations, masks, shifts and comparisons, whose unit has half
of the schedulers' rate. docs/kernels.md has what was measured, docs/kernels-tried.md what was slower. Only for Hopper
(sm_90): elsewhere see triton_mxfp4.py.
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

from harness.hip import LaunchError, Module, NoDevice, float32, int32, ptr

HEADS, LATENT, ROPE = 16, 512, 64
BLOCK_N = 64  # tokens a tile: the M of a warpgroup's matrix instruction
# By a program's decoders: programs a multiprocessor, registers a thread, places for codes and for values of a tile.
FORMS = {1: (2, 128, 2, 2), 2: (1, 168, 4, 2), 3: (1, 128, 6, 3)}
# Likewise, in us on an H200: a program's start and end, a tile, a tile without another program beside it.
COSTS = {1: (5.09, 2.01, 1.22), 2: (5.15, 0.97, 0.97), 3: (9.08, 0.84, 0.84)}
MERGE, LAST_MERGES = 1.6, 6.5  # us: the merge where all programs wait for each other, and where the last merges all
MAX_SPLITS = 64
LOG2_E = 1.4426950408889634
SHORT_TOKENS, CLUSTER, SHORT_SHARED_BYTES = 1024, 16, 74880
SHORT_PROGRAMS = 1.0  # a multiprocessor: with more than so many the kernel for short caches is not used
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
    DECODER: gl.constexpr, DECODERS: gl.constexpr, SLOTS: gl.constexpr, PLACES: gl.constexpr, HEADS: gl.constexpr,
    BLOCKS: gl.constexpr, BLOCK_N: gl.constexpr,
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
        if DECODERS == 1:
            slot = turn % SLOTS
            place = turn % PLACES
            slot_phase = turn // SLOTS & 1
            place_phase = turn // PLACES & 1
        else:
            slot = DECODER + (turn & 1) * DECODERS
            place = DECODER
            slot_phase = turn // 2 & 1
            place_phase = turn & 1
        row = begin + (DECODER + turn * DECODERS) * BLOCK_N
        next0, next1, next_rope = load_scales(pair_ptr, byte_ptr, row + DECODERS * BLOCK_N, end, BLOCKS)
        mbarrier.wait(full.index(slot), slot_phase)
        even, odd = load_codes(code_panels.index(2 * slot))
        keys = decode_latent(even, pairs0.to(gl.int32) & 0xFF, plus, none)
        mbarrier.wait(v_empty.index(place), place_phase ^ 1)
        score = warpgroup_mma(keys, q_smem.index(0).permute((1, 0)), none, use_acc=False, is_async=True)
        store_values(keys, panel0.index(place))
        keys = decode_latent(odd, pairs0.to(gl.int32) >> 8 & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(1).permute((1, 0)), score, is_async=True)
        store_values(keys, panel1.index(place))
        score = warpgroup_mma_wait(1, deps=[score])
        even, odd = load_codes(code_panels.index(2 * slot + 1))
        keys = decode_latent(even, pairs1.to(gl.int32) & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(2).permute((1, 0)), score, is_async=True)
        store_values(keys, panel2.index(place))
        score = warpgroup_mma_wait(1, deps=[score])
        keys = decode_latent(odd, pairs1.to(gl.int32) >> 8 & 0xFF, plus, none)
        score = warpgroup_mma(keys, q_smem.index(3).permute((1, 0)), score, is_async=True)
        store_values(keys, panel3.index(place))
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
        if DECODERS == 1:
            so_far = peak
        else:
            mbarrier.wait(v_full.index(BEFORE), turn + (1 if DECODER == 0 else 0) & 1)
            so_far = peaks.index(BEFORE).load(gl.SliceLayout(0, s_layout))
        new_peak = gl.maximum(so_far, highest * score_scale)
        shrink = gl.exp2(peak - new_peak)
        weight = gl.exp2(score * score_scale[None, :] - (new_peak - LOG2_WEIGHT)[None, :])
        totals = totals * shrink[None, :] + weight
        peak = new_peak
        store_weights(weight, p_pairs.index(place))
        if DECODERS > 1:
            peaks.index(place).store(peak)
        shrinks.index(place).store(gl.exp2(so_far - peak))
        fence_async_shared()
        thread_barrier()
        mbarrier.arrive(v_full.index(place))  # also: its codes are read
    if turns > 0:  # else what they were at the start stays
        last_peaks.index(DECODER).store(peak)
        last_totals.index(DECODER).store(gl.sum(totals, 0))
        thread_barrier()
    mbarrier.arrive(done.index(DECODER))


@gluon.jit
def add_up(
    adding,
    DECODERS: gl.constexpr, SLOTS: gl.constexpr, PLACES: gl.constexpr, BLOCK_N: gl.constexpr, WAITS: gl.constexpr,
    SPLITS: gl.constexpr, PAIRS: gl.constexpr, ONE_SPLIT: gl.constexpr, HEADS: gl.constexpr, LATENT: gl.constexpr,
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
        place = tile % PLACES
        slot = tile % SLOTS
        mbarrier.wait(v_full.index(place), tile // PLACES & 1)
        load_tile(
            latent_desc,
            rope_desc,
            codes.index(slot),
            rope_codes.index(slot),
            full.index(slot),
            begin + (tile + SLOTS) * BLOCK_N,
            tile + SLOTS < tiles,
        )
        # A sum a tile, added in float32: the fp8 instruction loses what is small beside what is there.
        p = p_bytes.index(place).permute((1, 0))
        sum0 = warpgroup_mma(values0.index(place).slice(0, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum1 = warpgroup_mma(values0.index(place).slice(64, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum2 = warpgroup_mma(values1.index(place).slice(0, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum3 = warpgroup_mma(values1.index(place).slice(64, 64, 0), p, nothing, use_acc=False, is_async=True)
        shrink = shrinks.index(place).load(by_head)[None, :]
        sum0 = warpgroup_mma_wait(3, deps=[sum0])
        acc0 = acc0 * shrink + sum0
        sum4 = warpgroup_mma(values2.index(place).slice(0, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum1 = warpgroup_mma_wait(3, deps=[sum1])
        acc1 = acc1 * shrink + sum1
        sum5 = warpgroup_mma(values2.index(place).slice(64, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum2 = warpgroup_mma_wait(3, deps=[sum2])
        acc2 = acc2 * shrink + sum2
        sum6 = warpgroup_mma(values3.index(place).slice(0, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum3 = warpgroup_mma_wait(3, deps=[sum3])
        acc3 = acc3 * shrink + sum3
        sum7 = warpgroup_mma(values3.index(place).slice(64, 64, 0), p, nothing, use_acc=False, is_async=True)
        sum4 = warpgroup_mma_wait(3, deps=[sum4])
        acc4 = acc4 * shrink + sum4
        sum5 = warpgroup_mma_wait(2, deps=[sum5])
        acc5 = acc5 * shrink + sum5
        sum6 = warpgroup_mma_wait(1, deps=[sum6])
        acc6 = acc6 * shrink + sum6
        sum7 = warpgroup_mma_wait(0, deps=[sum7])
        acc7 = acc7 * shrink + sum7
        thread_barrier()
        mbarrier.arrive(v_empty.index(place))
    for decoder in gl.static_range(DECODERS):
        mbarrier.wait(done.index(decoder), 0)
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


@gluon.jit(do_not_specialize=["longest", "splits"])
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
    SLOTS: gl.constexpr,  # for codes
    PLACES: gl.constexpr,  # for values
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

    codes = gl.allocate_shared_memory(gl.uint8, [SLOTS, BLOCK_N, LATENT // 2], latent_desc.layout)
    rope_codes = gl.allocate_shared_memory(gl.uint8, [SLOTS, BLOCK_N, ROPE // 2], rope_desc.layout)
    code_panels = codes._reinterpret(gl.uint8, [2 * SLOTS, BLOCK_N, 128], panel_layout)
    full = gl.allocate_shared_memory(gl.int64, [SLOTS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [PLACES, 1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [DECODERS, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(SLOTS):
        mbarrier.init(full.index(each), 1)
    for each in gl.static_range(PLACES):
        mbarrier.init(v_full.index(each), 1)
        mbarrier.init(v_empty.index(each), 1)
    for each in gl.static_range(DECODERS):
        mbarrier.init(done.index(each), 1)
    thread_barrier()
    for tile in gl.static_range(SLOTS):
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
    panel0 = gl.allocate_shared_memory(gl.int16, [PLACES, 128, BLOCK_N // 2], pair_layout)
    panel1 = gl.allocate_shared_memory(gl.int16, [PLACES, 128, BLOCK_N // 2], pair_layout)
    panel2 = gl.allocate_shared_memory(gl.int16, [PLACES, 128, BLOCK_N // 2], pair_layout)
    panel3 = gl.allocate_shared_memory(gl.int16, [PLACES, 128, BLOCK_N // 2], pair_layout)
    values0 = panel0._reinterpret(gl.float8e5, [PLACES, 128, BLOCK_N], byte_layout)
    values1 = panel1._reinterpret(gl.float8e5, [PLACES, 128, BLOCK_N], byte_layout)
    values2 = panel2._reinterpret(gl.float8e5, [PLACES, 128, BLOCK_N], byte_layout)
    values3 = panel3._reinterpret(gl.float8e5, [PLACES, 128, BLOCK_N], byte_layout)
    p_pairs = gl.allocate_shared_memory(gl.int16, [PLACES, HEADS, BLOCK_N // 2], pair_layout)
    p_bytes = p_pairs._reinterpret(gl.float8e4nv, [PLACES, HEADS, BLOCK_N], byte_layout)
    q_blocks = gl.allocate_shared_memory(gl.float8e4nv, [4, HEADS, 128], gl.NVMMASharedLayout(128, 8, 3))
    q_smem = q_blocks._reinterpret(gl.float8e4nv, [4, HEADS, 128], panel_layout)
    q_rope_smem = gl.allocate_shared_memory(gl.float8e4nv, [HEADS, ROPE], gl.NVMMASharedLayout(64, 8, 2))
    warp_peaks = gl.allocate_shared_memory(gl.float32, [DECODERS, 4, HEADS], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    peaks = gl.allocate_shared_memory(gl.float32, [DECODERS, HEADS], by_head)
    shrinks = gl.allocate_shared_memory(gl.float32, [PLACES, HEADS], by_head)
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
        last_peaks.index(each).store(gl.full([HEADS], float("-inf"), gl.float32, gl.SliceLayout(1, q_layout)))
        last_totals.index(each).store(gl.zeros([HEADS], gl.float32, gl.SliceLayout(1, q_layout)))
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
    if DECODERS == 1:
        gl.warp_specialize(
            [
                (add_up, (adding, DECODERS, SLOTS, PLACES, BLOCK_N, WAITS, SPLITS, PAIRS, ONE_SPLIT, HEADS, LATENT)),
                (decode_and_score, (decoding, 0, DECODERS, SLOTS, PLACES, HEADS, BLOCKS, BLOCK_N)),
            ],
            [4],
            [REGISTERS],
        )
    elif DECODERS == 2:
        gl.warp_specialize(
            [
                (add_up, (adding, DECODERS, SLOTS, PLACES, BLOCK_N, WAITS, SPLITS, PAIRS, ONE_SPLIT, HEADS, LATENT)),
                (decode_and_score, (decoding, 0, DECODERS, SLOTS, PLACES, HEADS, BLOCKS, BLOCK_N)),
                (decode_and_score, (decoding, 1, DECODERS, SLOTS, PLACES, HEADS, BLOCKS, BLOCK_N)),
            ],
            [4, 4],
            [REGISTERS, REGISTERS],
        )
    else:
        gl.warp_specialize(
            [
                (add_up, (adding, DECODERS, SLOTS, PLACES, BLOCK_N, WAITS, SPLITS, PAIRS, ONE_SPLIT, HEADS, LATENT)),
                (decode_and_score, (decoding, 0, DECODERS, SLOTS, PLACES, HEADS, BLOCKS, BLOCK_N)),
                (decode_and_score, (decoding, 1, DECODERS, SLOTS, PLACES, HEADS, BLOCKS, BLOCK_N)),
                (decode_and_score, (decoding, 2, DECODERS, SLOTS, PLACES, HEADS, BLOCKS, BLOCK_N)),
            ],
            [4, 4, 4],
            [REGISTERS, REGISTERS, REGISTERS],
        )


SHORT = r"""
#define HEADS 16
#define LATENT 512
#define DIM 576
#define BLOCKS (DIM / 32)
#define CLUSTER 16
#define TOKENS 64  // at most, of a program
#define THREADS 256
#define Q_ROW (2 * DIM + 16)  // bytes, of fp16: 8 rows at one column lie in 8 x 4 banks
#define EARLY 20  // of the 36 fragments of the queries: those that are read before the tokens are there
#define WEIGHT_ROW 144  // bytes: rows start in other banks
#define SLICE (LATENT / CLUSTER)  // dims that a program merges
#define HALF_ROW (SLICE / 2 * 2)  // bytes, of 16-bit values of half of a slice
#define HALF_BYTES (HEADS * HALF_ROW + 64)  // a source's 16 dims of each head; the other 16 lie in other banks
#define ONES 0x3c003c00u
#define PLUS 0x40404040u
#define SHIFT 4  // values are decoded to 2^SHIFT of themselves, as in the other kernel
#define MINUS_INFINITY __builtin_bit_cast(float, 0xff800000u)

typedef unsigned u32;

struct __align__(128) Shared {
    unsigned char tile[TOKENS * LATENT];  // values in e5m2: 16 bytes at column c of token n lie at column c ^ n % 8
    unsigned char q[HEADS * Q_ROW];
    float peak[HEADS][8];  // of a warp's tokens
    unsigned char weight[HEADS * WEIGHT_ROW];
    unsigned char part[CLUSTER][2][HALF_BYTES];  // [source][half of the dims][head]
    float2 stat[CLUSTER][HEADS];  // a source's peak and total
    float scale[HEADS];
    unsigned long long has_stats, has_parts;  // barriers
};
static_assert(sizeof(Shared) == SHARED_BYTES, "as much as is asked for");

__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void ldmatrix4(u32* r, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void ldmatrix4_transposed(u32* r, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from) : "memory");
}

__device__ __forceinline__ void mma(float* c, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 packed(float low, float high) {
    u32 x;
    asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(x) : "f"(low), "f"(high));
    return x;
}

__device__ __forceinline__ u32 packed_bf16(float low, float high) {
    u32 x;
    asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(x) : "f"(low), "f"(high));
    return x;
}

// Loads that stay where they are written, which others do not: all are to be under way before the first is waited for.
__device__ __forceinline__ uint4 load16(const unsigned char* from) {
    uint4 x;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(from) : "memory");
    return x;
}

__device__ __forceinline__ uint2 load8(const unsigned char* from) {
    uint2 x;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(from) : "memory");
    return x;
}

__device__ __forceinline__ u32 load1(const unsigned char* from) {
    u32 x;
    asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

__device__ __forceinline__ u32 permuted(u32 a, u32 b, u32 selector) {
    u32 x;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(selector));
    return x;
}

// A block's eight magnitudes, as `tables` makes them.
__device__ __forceinline__ void tables(u32 e8m0, u32& low, u32& high) {
    const u32 e = min(max(e8m0, 109u), 136u);
    low = e * 0x04040400u + 0x504E4C00u;
    high = e * 0x04040404u + 0x58565454u;
}

// Eight codes as e5m2 bytes of minus their values, as `decoded` makes them.
__device__ __forceinline__ void decode(u32 codes, u32 low, u32 high, u32& first, u32& last) {
    const u32 magnitudes = codes & 0x77777777u;
    first = permuted(low, high, magnitudes) + 2 * permuted(PLUS, PLUS, codes);
    last = permuted(low, high, magnitudes >> 16) + 2 * permuted(PLUS, PLUS, codes >> 16);
}

// Of four e5m2 bytes those at 0 and 2, and those at 1 and 3, as fp16 pairs: e5m2 is the upper byte of fp16.
__device__ __forceinline__ u32 even_pair(u32 bytes) { return permuted(bytes, 0, 0x2404); }
__device__ __forceinline__ u32 odd_pair(u32 bytes) { return bytes & 0xff00ff00u; }

// What to subtract from scores whose maximum this is: without a token, or with scores of -inf alone, weights are 0.
__device__ __forceinline__ float base_of(float peak) { return peak == MINUS_INFINITY ? 0.0f : peak; }

// The address of what lies there in the shared memory of another program of the cluster.
__device__ __forceinline__ u32 in_peer(u32 local, u32 rank) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(local), "r"(rank));
    return there;
}

// True in one thread of the warp; unlike with `lane == 0` the compiler knows that it is one.
__device__ __forceinline__ bool elected() {
    u32 mine;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "elect.sync _|p, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}" : "=r"(mine));
    return mine;
}

__device__ __forceinline__ void init(void* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(address(barrier)) : "memory");
}

// What was initialised may be used by copies and peers.
__device__ __forceinline__ void publish() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ __forceinline__ void expect(void* barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(address(barrier)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait_for_peers(void* barrier) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN:\n"
                 "mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra AGAIN;\n"
                 "}" :: "r"(address(barrier)) : "memory");
}

// A cluster of programs a sequence: grid (CLUSTER, batch), at most CLUSTER * TOKENS tokens each.
extern "C" __global__ __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS) void attend_short(
    const unsigned char* __restrict__ cache,   // [total tokens, DIM / 2]: two E2M1 codes a byte
    const unsigned char* __restrict__ e8m0,    // [total tokens, BLOCKS]
    const u32* __restrict__ q,                 // [batch, HEADS, DIM] bf16
    const u32* __restrict__ kv_indptr,         // [batch + 1]; not read if every sequence has `uniform` tokens, not 0
    u32* __restrict__ out,                     // [batch, HEADS, LATENT] bf16
    u32 uniform,
    float score_scale  // sm_scale * log2(e), over 2^SHIFT
) {
    extern __shared__ __align__(128) unsigned char raw[];
    Shared& shared = *(Shared*)raw;
    const u32 thread = threadIdx.x, lane = thread % 32, g = lane / 4, t = lane % 4;
    const u32 warp = __shfl_sync(~0u, thread / 32, 0);  // so that the compiler knows it to be the same in all lanes
    const u32 rank = blockIdx.x, sequence = blockIdx.y;
    u32 first = sequence * uniform, length = uniform;
    if (!uniform) {
        first = kv_indptr[sequence];
        length = kv_indptr[sequence + 1] - first;
    }
    // A warp has 8 tokens, a lane whole blocks of one: the t-th of each four, and half of one of the rope part.
    const u32 span = (length + CLUSTER - 1) / CLUSTER, begin = min(rank * span, length);
    const u32 tokens = min(span, length - begin);
    // A lane without a token takes the cache's first: whatever it decodes is finite, and its weight is 0. With a branch
    // the compiler would have these loads wait for those of the queries.
    const unsigned long long token = 8 * warp + g < tokens ? first + begin + 8 * warp + g : 0;
    const unsigned char *const from = cache + token * (DIM / 2), *const scale_from = e8m0 + token * BLOCKS;
    uint4 codes[4];
    u32 scales[5];
#pragma unroll
    for (u32 j = 0; j < 4; j++) codes[j] = load16(from + j * 64 + t * 16);
    const uint2 rope_codes = load8(from + LATENT / 2 + t * 8);
#pragma unroll
    for (u32 j = 0; j < 4; j++) scales[j] = load1(scale_from + j * 4 + t);
    scales[4] = load1(scale_from + LATENT / 32 + t / 2);
    // Two heads a warp: 144 pieces of 16 bytes, four a lane, and a fifth for half of the lanes. With these loads first
    // the compiler would have the others wait for them.
    const unsigned char* const q_from =
        (const unsigned char*)q + ((sequence * HEADS + 2 * warp) * (DIM / 8) + lane) * 16ull;
    uint4 words[5];
#pragma unroll
    for (u32 i = 0; i < 5; i++) words[i] = i < 4 || lane < 16 ? load16(q_from + i * 512) : make_uint4(0, 0, 0, 0);
    if (warp == 0 && elected()) {
        init(&shared.has_stats);
        init(&shared.has_parts);
        publish();
        expect(&shared.has_stats, sizeof(Shared::stat));
        expect(&shared.has_parts, CLUSTER * HEADS * SLICE * 2);
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");  // peers may use its barriers

    // Minus the queries to fp16, as fractions of the head's greatest.
    float most0 = 0, most1 = 0;
#pragma unroll
    for (u32 i = 0; i < 5; i++) {
        const u32 x[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
        u32 most = 0;  // without their signs they compare as integers
#pragma unroll
        for (u32 j = 0; j < 4; j++) most = max(most, max(x[j] << 16 & 0x7fff0000u, x[j] & 0x7fff0000u));
        const float greatest = __builtin_bit_cast(float, most);
        if (i * 32 + lane < 72) most0 = fmaxf(most0, greatest);
        else most1 = fmaxf(most1, greatest);
    }
#pragma unroll
    for (int mask = 16; mask; mask /= 2) {
        most0 = fmaxf(most0, shuffle_xor(most0, mask));
        most1 = fmaxf(most1, shuffle_xor(most1, mask));
    }
    most0 = fmaxf(most0, 1e-30f);
    most1 = fmaxf(most1, 1e-30f);
    const float inverse0 = __fdividef(-1.0f, most0), inverse1 = __fdividef(-1.0f, most1);
#pragma unroll
    for (u32 i = 0; i < 5; i++) {
        const bool second = i * 32 + lane >= 72;
        const float inverse = second ? inverse1 : inverse0;
        const u32 x[4] = {words[i].x, words[i].y, words[i].z, words[i].w};
        // Of each four dims 0 and 2 are a pair, and 1 and 3, as codes are decoded. A fragment has, of a head, a pair
        // from each of four lanes' blocks: those lie side by side. Which of the piece's pairs it is tells the region.
        const u32 piece = i * 32 + lane - (second ? 72 : 0);
        unsigned char* const to = shared.q + (2 * warp + second) * Q_ROW;
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            const u32 a = x[2 * h], b = x[2 * h + 1];
            const u32 at = piece < 64 ? h * 512 + piece / 16 * 64 + piece % 4 * 16 + piece / 4 % 4 * 4
                                      : 2 * LATENT + h * 64 + piece % 2 * 16 + piece % 8 / 2 * 4;
            if (i < 4 || lane < 16) {
                *(u32*)(to + at) = packed(bfloat16_low(a) * inverse, bfloat16_low(b) * inverse);
                *(u32*)(to + at + (piece < 64 ? 256 : 32)) =
                    packed(bfloat16_high(a) * inverse, bfloat16_high(b) * inverse);
            }
        }
    }
    if (lane == 0) {
        shared.scale[2 * warp] = most0 * score_scale;
        shared.scale[2 * warp + 1] = most1 * score_scale;
    }
    __syncthreads();

    // Scores of 8 tokens, whose values go to the tile.
    float x[4];
    {
        u32 a[36][4];
        const u32 row = address(shared.q) + lane % 16 * Q_ROW;
        const u32 query = row + lane / 16 * 256, rope_query = row + 2 * LATENT + lane / 16 * 32;
        auto load_query = [&](u32 k) {
            ldmatrix4(a[k], k < 32 ? query + k / 8 * 64 + k % 8 / 2 * 16 + k % 2 * 512
                                   : rope_query + k % 4 / 2 * 16 + k % 2 * 64);
        };
#pragma unroll
        for (u32 k = 0; k < EARLY; k++) load_query(k);
        const float scale0 = shared.scale[g], scale1 = shared.scale[g + 8];
        float s[4][4] = {};  // of every fourth 16 dims: one long chain would be slower
        unsigned char* const values = shared.tile + (8 * warp + g) * LATENT;
#pragma unroll
        for (u32 j = 0; j < 5; j++) {  // the rope dims last: they may be large
            const u32 word[4] = {j < 4 ? codes[j].x : rope_codes.x, j < 4 ? codes[j].y : rope_codes.y,
                                 j < 4 ? codes[j].z : 0, j < 4 ? codes[j].w : 0};
            u32 low, high, bytes[8];
            tables(scales[j], low, high);
#pragma unroll
            for (u32 k = 0; k < (j < 4 ? 8 : 4); k += 2) {
                decode(word[k / 2], low, high, bytes[k], bytes[k + 1]);
                if (8 * j + k >= EARLY) load_query(8 * j + k);
                if (8 * j + k + 1 >= EARLY) load_query(8 * j + k + 1);
                mma(s[k % 4], a[8 * j + k], even_pair(bytes[k]), odd_pair(bytes[k]));
                mma(s[k % 4 + 1], a[8 * j + k + 1], even_pair(bytes[k + 1]), odd_pair(bytes[k + 1]));
            }
            if (j < 4) {
                *(uint4*)(values + j * 128 + (2 * t ^ g) * 16) = make_uint4(bytes[0], bytes[1], bytes[2], bytes[3]);
                *(uint4*)(values + j * 128 + ((2 * t + 1) ^ g) * 16) =
                    make_uint4(bytes[4], bytes[5], bytes[6], bytes[7]);
            }
        }
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const float sum = (s[0][i] + s[1][i]) + (s[2][i] + s[3][i]);
            x[i] = 8 * warp + 2 * t + i % 2 < tokens ? sum * (i < 2 ? scale0 : scale1) : MINUS_INFINITY;
        }
    }

    // Softmax of heads g and g + 8.
    float peak0 = fmaxf(x[0], x[1]), peak1 = fmaxf(x[2], x[3]);
#pragma unroll
    for (int mask = 1; mask <= 2; mask *= 2) {
        peak0 = fmaxf(peak0, shuffle_xor(peak0, mask));
        peak1 = fmaxf(peak1, shuffle_xor(peak1, mask));
    }
    if (t == 0) {
        shared.peak[g][warp] = peak0;
        shared.peak[g + 8][warp] = peak1;
    }
    __syncthreads();
    {
        const float4 a = *(float4*)shared.peak[g], b = *(float4*)(shared.peak[g] + 4);
        const float4 c = *(float4*)shared.peak[g + 8], d = *(float4*)(shared.peak[g + 8] + 4);
        peak0 = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
        peak1 = fmaxf(fmaxf(fmaxf(c.x, c.y), fmaxf(c.z, c.w)), fmaxf(fmaxf(d.x, d.y), fmaxf(d.z, d.w)));
    }
    const float base0 = base_of(peak0), base1 = base_of(peak1);
    unsigned char* const weight_at = shared.weight + g * WEIGHT_ROW + warp * 16 + t * 4;
    *(u32*)weight_at = packed(exp2_fast(x[0] - base0), exp2_fast(x[1] - base0));
    *(u32*)(weight_at + 8 * WEIGHT_ROW) = packed(exp2_fast(x[2] - base1), exp2_fast(x[3] - base1));
    __syncthreads();

    // Output: a warp has 64 dims, 32 for either of two programs that merge them.
    const u32 value = address(shared.tile) + lane % 16 * LATENT;
    u32 weight[TOKENS / 16][4];
#pragma unroll
    for (u32 k = 0; k < TOKENS / 16; k++)
        ldmatrix4(weight[k], address(shared.weight) + lane % 16 * WEIGHT_ROW + k * 32 + lane / 16 * 16);
    float total[4] = {};
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
        float acc[4][4] = {};  // of 16 dims the even and the odd ones, and of 16 of the other program's
#pragma unroll
        for (u32 k = 0; k < TOKENS / 16; k++) {
            u32 v[4];  // tokens 0..7 and 8..15 of the one and of the other 16
            ldmatrix4_transposed(v, value + k * (16 * LATENT) + ((4 * warp + lane / 16 * 2 + half) ^ lane % 8) * 16);
            mma(acc[0], weight[k], even_pair(v[0]), even_pair(v[1]));
            mma(acc[1], weight[k], odd_pair(v[0]), odd_pair(v[1]));
            mma(acc[2], weight[k], even_pair(v[2]), even_pair(v[3]));
            mma(acc[3], weight[k], odd_pair(v[2]), odd_pair(v[3]));
        }
        if (half == 0) {
#pragma unroll
            for (u32 k = 0; k < TOKENS / 16; k++) mma(total, weight[k], ONES, ONES);
            asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");  // all have begun
            const u32 to = 2 * warp + t / 2;
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                         :: "r"(in_peer(address(&shared.stat[rank][g + t % 2 * 8]), to)), "f"(t % 2 ? peak1 : peak0),
                            "f"(t % 2 ? total[2] : total[0]), "r"(in_peer(address(&shared.has_stats), to)) : "memory");
        }
        // 16 bytes a lane and row: two neighbouring lanes, which have 8 for either program, exchange one.
        const u32 to = 2 * warp + t % 2, barrier = in_peer(address(&shared.has_parts), to);
        const bool odd = t % 2;
#pragma unroll
        for (u32 row = 0; row < 2; row++) {
            u32 word[2][2];
#pragma unroll
            for (u32 i = 0; i < 2; i++) {
                const float *even_dims = acc[2 * i] + 2 * row, *odd_dims = acc[2 * i + 1] + 2 * row;
                word[i][0] = packed_bf16(even_dims[0], odd_dims[0]);
                word[i][1] = packed_bf16(even_dims[1], odd_dims[1]);
            }
            const u32 low = __shfl_xor_sync(~0u, odd ? word[0][0] : word[1][0], 1);
            const u32 high = __shfl_xor_sync(~0u, odd ? word[0][1] : word[1][1], 1);
            const u32 there = in_peer(address(shared.part[rank][half]) + (g + 8 * row) * HALF_ROW + t / 2 * 16, to);
            asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                         :: "r"(there), "r"(odd ? low : word[0][0]), "r"(odd ? high : word[0][1]),
                         "r"(odd ? word[1][0] : low), "r"(odd ? word[1][1] : high), "r"(barrier) : "memory");
        }
    }

    // The merge: 16 threads a head.
    const u32 head = thread / 16, of_head = thread % 16;
    float weights[CLUSTER], totals[CLUSTER], top = MINUS_INFINITY, whole = 0, even = 0, odd = 0;
    wait_for_peers(&shared.has_stats);
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) {
        const float2 stat = shared.stat[i][head];
        top = fmaxf(top, weights[i] = stat.x);
        totals[i] = stat.y;
    }
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++)
        whole += totals[i] * (weights[i] = exp2_fast(weights[i] - base_of(top)));
    wait_for_peers(&shared.has_parts);
#pragma unroll
    for (u32 i = 0; i < CLUSTER; i++) {
        const u32 y = *(u32*)(shared.part[i][of_head / 8] + head * HALF_ROW + of_head % 8 * 4);
        even += bfloat16_low(y) * weights[i];
        odd += bfloat16_high(y) * weights[i];
    }
    const float factor = whole != 0 ? __fdividef(-1.0f / (1 << SHIFT), whole) : 0.0f;
    u32* const to = out + (sequence * HEADS + head) * (LATENT / 2) + rank * (SLICE / 2);
    to[of_head] = packed_bf16(even * factor, odd * factor);
}
"""


@functools.cache
def attend_short():
    """Made when it is first called: no other compiler than NVIDIA's takes it."""
    types = {
        "cache": ptr(torch.uint8, alignment=16),
        "e8m0": ptr(torch.uint8),
        "q": ptr(torch.bfloat16, alignment=16),
        "kv_indptr": ptr(torch.int32),
        "out": ptr(torch.bfloat16),
        "uniform": int32,
        "score_scale": float32,
    }
    return Module(SHORT, {"SHARED_BYTES": SHORT_SHARED_BYTES}).kernel("attend_short", types)


without_clusters = set()  # devices that have refused one of 16


def launch_short(device, *arguments, batch):
    """Whether the kernel for short caches is under way. Clusters of 16 are more than every chip has to grant, and a
    part of one (MIG) may have none."""
    if device in without_clusters:
        return False
    try:
        attend_short()(*arguments, grid=(CLUSTER, batch), block=256, shared_bytes=SHORT_SHARED_BYTES)
    except LaunchError:
        without_clusters.add(device)
    return device not in without_clusters


def custom_kernel(data):
    return launch(data)


def launch(data, decoders=2, splits=None, short=True):
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
    uniform = packed.shape[0] == batch * longest
    if short and longest <= SHORT_TOKENS and CLUSTER * batch <= SHORT_PROGRAMS * multiprocessors:
        scale = config["sm_scale"] * LOG2_E / (1 << SHIFT.value)
        arguments = packed, e8m0, q, kv_indptr, out, longest if uniform else 0, scale
        if launch_short(q.device, *arguments, batch=batch):
            return out
    tiles = triton.cdiv(longest, BLOCK_N)
    if splits is None:
        decoders, splits = choose(batch, tiles, multiprocessors)
    together, registers, slots, places = FORMS[decoders]
    waits = 1 < splits <= multiprocessors * together // batch
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
        config["sm_scale"] * LOG2_E, longest, splits, UNIFORM=uniform, WAITS=waits,
        SPLITS=triton.next_power_of_2(splits), PAIRS=triton.next_power_of_2(max(triton.cdiv(LATENT // 2, splits), 4)),
        ONE_SPLIT=splits == 1, HEADS=HEADS, LATENT=LATENT, ROPE=ROPE, BLOCK_N=BLOCK_N, DECODERS=decoders, SLOTS=slots,
        PLACES=places, REGISTERS=registers, num_warps=4, maxnreg=registers, launch_cooperative_grid=waits,
    )  # fmt: skip
    return out


@functools.cache
def counters(device, stream, splits, batch):
    """One a sequence. They only grow: by `splits` a launch."""
    return torch.zeros(batch, dtype=torch.int64, device=device)


@functools.cache  # trying all takes longer than the kernel's launch
def choose(batch, tiles, multiprocessors):
    """How many decoders a program has, and how many programs share the tokens of a sequence of so many tiles: those
    that take the least time."""
    choices = [(decoders, splits) for decoders in FORMS for splits in range(1, min(tiles, MAX_SPLITS) + 1)]
    return min(choices, key=lambda choice: time_of(batch, tiles, *choice, multiprocessors))


def time_of(batch, tiles, decoders, splits, multiprocessors):
    """In us, but for what every choice takes. Programs run in rounds, as many at once as there are places."""
    start, tile, alone = COSTS[decoders]
    rounds, last = divmod(batch * splits, multiprocessors * FORMS[decoders][0])
    tiles_each = -(-tiles // splits)
    took = rounds * (start + tiles_each * tile)
    if last:
        took += start + tiles_each * (alone if last <= multiprocessors else tile)
    return took + (0.0 if splits == 1 else MERGE if rounds + (last > 0) == 1 else LAST_MERGES)

"""Inline HIP: 16 bytes a thread, every byte of K and V read once and stored G times, whatever the head's width.

Idea. Heads are the last axis but one, so the G copies of a KV row are G neighbouring rows of the output, one run of
memory: row r goes to rows r G .. r G + G - 1. Which of three kernels runs depends on the bytes of a row.

A multiple of 16 (D = 64, 80, 128, 256 in any dtype): `replicate_words`. A thread loads one 16-byte word of K and one of
V and stores each G times; a wave's stores of one copy are whole rows, or runs of 512 or 1024 bytes. One division a
thread, against up to eight an element in hip_seed.py.

Anything else up to D = 256 (bfloat16 at D = 127: 254 bytes): `replicate_runs`. Rows are not aligned, but runs are: R
rows make a multiple of 16 bytes of K, and so do their R G copies in the output. A block takes R rows, up to 4 KiB of K
and as much of V, into shared memory in 16-byte loads and writes their copies as one run in 16-byte stores, each put
together from elements in shared memory: there the source advances with the output, and steps back by a row at the end
of each copy but the last. Only the tensor's last block can end inside a word; single elements are stored there.

Longer and uneven rows: `replicate_words` on single elements.

Bytes an input element: 2 e (1 + G), the least possible. Limited by the bandwidth of stores; for uneven rows possibly by
shared memory, 8 reads of 2 bytes a store. docs/kernels.md has what was measured.
"""

import torch

from harness.hip import Module, int32, int64, ptr, uint32

SOURCE = r"""
// words, as they lie: [rows, length] to [rows, group, length].
template <class WORD>
__device__ inline void replicate_words(
    const WORD* __restrict__ k, const WORD* __restrict__ v, WORD* __restrict__ k_out, WORD* __restrict__ v_out,
    unsigned count, int length, int group) {
    const unsigned index = blockIdx.x * 256 + threadIdx.x;
    if (index >= count) return;
    const unsigned row = index / length;
    const WORD from_k = k[index], from_v = v[index];
    unsigned long long target = (unsigned long long)row * group * length + index % length;
    for (int copy = 0; copy < group; copy++, target += length) {
        k_out[target] = from_k;
        v_out[target] = from_v;
    }
}

#define REPLICATE_WORDS(NAME, WORD)                                                              \
    extern "C" __global__ __launch_bounds__(256) void NAME(                                      \
        const WORD* __restrict__ k, const WORD* __restrict__ v, WORD* __restrict__ k_out,        \
        WORD* __restrict__ v_out, unsigned count, int length, int group) {                       \
        replicate_words<WORD>(k, v, k_out, v_out, count, length, group);                         \
    }
REPLICATE_WORDS(replicate_words_16, bytes16)
REPLICATE_WORDS(replicate_words_4, unsigned int)
REPLICATE_WORDS(replicate_words_2, unsigned short)

// Up to STAGED_BYTES of elements, from an address aligned to 16 bytes, into shared memory: a word a thread.
template <class ELEMENT>
__device__ inline void stage(const ELEMENT* __restrict__ in, ELEMENT* staged, int count) {
    const int wide = 16 / sizeof(ELEMENT), words = count / wide, thread = threadIdx.x;
    if (thread < words) ((bytes16*)staged)[thread] = ((const bytes16*)in)[thread];
    if (thread < count % wide) staged[words * wide + thread] = in[words * wide + thread];
}

// The copies of the staged rows, as one run from an address aligned to 16 bytes.
template <class ELEMENT>
__device__ inline void write_run(ELEMENT* __restrict__ run, const ELEMENT* staged, int count, int length, int group) {
    const int wide = 16 / sizeof(ELEMENT), words = count * group / wide, thread = threadIdx.x;
    for (int word = thread; word < words; word += 256) {
        const int copied_row = word * wide / length;
        const int row = copied_row / group;
        int dim = word * wide - copied_row * length, copy = copied_row - row * group, source = row * length + dim;
        vec<ELEMENT, wide> elements;
#pragma unroll
        for (int i = 0; i < wide; i++) {
            elements.at[i] = staged[source++];
            if (++dim == length) {
                dim = 0;
                if (++copy == group) copy = 0; else source -= length;
            }
        }
        ((bytes16*)run)[word] = __builtin_bit_cast(bytes16, elements);
    }
    if (thread < count * group % wide) {
        const int last = words * wide + thread;
        run[last] = staged[last / length / group * length + last % length];
    }
}

#define REPLICATE_RUNS(NAME, ELEMENT)                                                            \
    extern "C" __global__ __launch_bounds__(256) void NAME(                                      \
        const ELEMENT* __restrict__ k, const ELEMENT* __restrict__ v, ELEMENT* __restrict__ k_out, \
        ELEMENT* __restrict__ v_out, long long rows, int rows_per_block, int length, int group) { \
        __shared__ bytes16 staged_k[STAGED_BYTES / 16], staged_v[STAGED_BYTES / 16]; \
        const long long row = (long long)blockIdx.x * rows_per_block; \
        const long long left = rows - row, first = row * length; \
        const int count = (int)(left < rows_per_block ? left : rows_per_block) * length; \
        stage<ELEMENT>(k + first, (ELEMENT*)staged_k, count); \
        stage<ELEMENT>(v + first, (ELEMENT*)staged_v, count); \
        __syncthreads(); \
        write_run<ELEMENT>(k_out + first * group, (const ELEMENT*)staged_k, count, length, group); \
        write_run<ELEMENT>(v_out + first * group, (const ELEMENT*)staged_v, count, length, group); \
    }
REPLICATE_RUNS(replicate_runs_4, unsigned int)
REPLICATE_RUNS(replicate_runs_2, unsigned short)
"""

THREADS = 256
STAGED_BYTES = 16 * THREADS

MODULE = Module(SOURCE, {"STAGED_BYTES": STAGED_BYTES})
ELEMENTS = ptr(torch.float32, torch.bfloat16, torch.float16, alignment=16)
TENSORS = {name: ELEMENTS for name in ("k", "v", "k_out", "v_out")}
REPLICATE_WORDS = {
    size: MODULE.kernel(f"replicate_words_{size}", {**TENSORS, "count": uint32, "length": int32, "group": int32})
    for size in (16, 4, 2)
}
REPLICATE_RUNS = {
    size: MODULE.kernel(
        f"replicate_runs_{size}",
        {**TENSORS, "rows": int64, "rows_per_block": int32, "length": int32, "group": int32},
    )
    for size in (4, 2)
}


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    head_dim, size = config["head_dim"], k.itemsize
    rows, row_bytes = k.numel() // head_dim, head_dim * size
    per_word = 16 // size  # so many rows are a multiple of 16 bytes, whatever their length
    if row_bytes % 16 and row_bytes * per_word <= STAGED_BYTES:
        step = STAGED_BYTES // (row_bytes * per_word) * per_word
        kernel = REPLICATE_RUNS[size]
        kernel(k, v, k_out, v_out, rows, step, head_dim, group, grid=-(-rows // step), block=THREADS)
        return k_out, v_out
    word = 16 if row_bytes % 16 == 0 else size
    length = row_bytes // word
    count = rows * length
    REPLICATE_WORDS[word](k, v, k_out, v_out, count, length, group, grid=-(-count // THREADS), block=THREADS)
    return k_out, v_out

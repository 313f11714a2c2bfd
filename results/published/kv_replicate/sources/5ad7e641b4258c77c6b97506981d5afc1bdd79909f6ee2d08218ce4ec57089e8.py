"""Inline HIP: the seed's three kernels (K only, V only, K and V fused), one output element a thread.

Idea. A thread works out which element of the output it has, finds the KV head that its query head shares, and copies.
The fused kernel, which is what runs here, does so for K and V with one index calculation and one launch; the other two
are there to be launched alone.

Grid. One dimension, 256 threads a block: neighbouring threads hold neighbouring elements of the output, so a wave's
stores are one run of memory, and so are its loads, within a head. Batch and position are decoded apart, as in the seed,
though contiguous tensors would allow one index for both.

Words. Elements are moved as unsigned integers of their size: exact for NaNs of every payload. The index is 32 bits wide
where the output has fewer than 2^31 elements and 64 where not; the divisions by sizes known only at run time are most
of the instructions, and 64-bit ones are several times as long.

Bytes an input element: 2 e (1 + G) to memory, the least possible, since the G reads of an element find it in cache; but
2 G e through the load path, in loads of 2 or 4 bytes a thread. Limited by instructions rather than bandwidth: up to
eight divisions and remainders an element.
"""

import torch

from harness.hip import Module, int32, ptr

SOURCE = r"""
// The place in the input of element `index` of the output [batch, seq, q_head, dim].
__device__ inline INDEX source_of(INDEX index, int seq_len, int num_kv_heads, int num_q_heads, int head_dim) {
    const INDEX per_token = (INDEX)num_q_heads * head_dim;
    const INDEX per_batch = per_token * seq_len;
    const INDEX batch = index / per_batch;
    const INDEX seq = index % per_batch / per_token;
    const INDEX q_head = index % per_token / head_dim;
    const INDEX dim = index % head_dim;
    const INDEX kv_head = q_head / (num_q_heads / num_kv_heads);
    return ((batch * seq_len + seq) * num_kv_heads + kv_head) * head_dim + dim;
}

__device__ inline INDEX elements(int batch_size, int seq_len, int num_q_heads, int head_dim) {
    return (INDEX)batch_size * seq_len * num_q_heads * head_dim;
}

extern "C" __global__ __launch_bounds__(256) void mqa_kv_replicate_k_kernel(
    const WORD* __restrict__ k, WORD* __restrict__ k_out,
    int batch_size, int seq_len, int num_kv_heads, int num_q_heads, int head_dim) {
    const INDEX index = (INDEX)blockIdx.x * 256 + threadIdx.x;
    if (index >= elements(batch_size, seq_len, num_q_heads, head_dim)) return;
    k_out[index] = k[source_of(index, seq_len, num_kv_heads, num_q_heads, head_dim)];
}

extern "C" __global__ __launch_bounds__(256) void mqa_kv_replicate_v_kernel(
    const WORD* __restrict__ v, WORD* __restrict__ v_out,
    int batch_size, int seq_len, int num_kv_heads, int num_q_heads, int head_dim) {
    const INDEX index = (INDEX)blockIdx.x * 256 + threadIdx.x;
    if (index >= elements(batch_size, seq_len, num_q_heads, head_dim)) return;
    v_out[index] = v[source_of(index, seq_len, num_kv_heads, num_q_heads, head_dim)];
}

extern "C" __global__ __launch_bounds__(256) void mqa_kv_replicate_fused_kernel(
    const WORD* __restrict__ k, const WORD* __restrict__ v, WORD* __restrict__ k_out, WORD* __restrict__ v_out,
    int batch_size, int seq_len, int num_kv_heads, int num_q_heads, int head_dim) {
    const INDEX index = (INDEX)blockIdx.x * 256 + threadIdx.x;
    if (index >= elements(batch_size, seq_len, num_q_heads, head_dim)) return;
    const INDEX source = source_of(index, seq_len, num_kv_heads, num_q_heads, head_dim);
    k_out[index] = k[source];
    v_out[index] = v[source];
}
"""

THREADS = 256
WORDS = {2: "unsigned short", 4: "unsigned int"}
INDICES = {32: "unsigned int", 64: "unsigned long long"}
MODULES = {
    (size, bits): Module(SOURCE, {"WORD": word, "INDEX": index})
    for size, word in WORDS.items()
    for bits, index in INDICES.items()
}

SIZES = {name: int32 for name in ("batch_size", "seq_len", "num_kv_heads", "num_q_heads", "head_dim")}
ELEMENTS = ptr(torch.float32, torch.bfloat16, torch.float16)

REPLICATE_K = {
    key: module.kernel("mqa_kv_replicate_k_kernel", {"k": ELEMENTS, "k_out": ELEMENTS, **SIZES})
    for key, module in MODULES.items()
}
REPLICATE_V = {
    key: module.kernel("mqa_kv_replicate_v_kernel", {"v": ELEMENTS, "v_out": ELEMENTS, **SIZES})
    for key, module in MODULES.items()
}
REPLICATE_FUSED = {
    key: module.kernel(
        "mqa_kv_replicate_fused_kernel",
        {"k": ELEMENTS, "v": ELEMENTS, "k_out": ELEMENTS, "v_out": ELEMENTS, **SIZES},
    )
    for key, module in MODULES.items()
}


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    count = k_out.numel()
    # The last block's threads count past the end: below 2^31 elements they still fit into 32 bits.
    kernel = REPLICATE_FUSED[k.itemsize, 32 if count < 2**31 else 64]
    kernel(k, v, k_out, v_out, *(config[name] for name in SIZES), grid=-(-count // THREADS), block=THREADS)
    return k_out, v_out

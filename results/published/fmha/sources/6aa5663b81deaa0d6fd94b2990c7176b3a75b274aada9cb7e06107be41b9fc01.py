"""Triton, no tensor cores: a warp takes a few query rows whole, with all their keys and values in registers.

Idea. One query against at most 16 keys is one flop a byte: bandwidth decides, and a matrix instruction would run with
15 of its 16 query rows empty. So a program of one warp (a wavefront on AMD) asks for K and V of its rows at once,
before it computes anything, multiplies and sums in float32, and stores the row. One warp because then every reduction,
over D within a key and over keys within a row, is shuffles, with no barrier. What hides latency is that many such warps
are in flight: compiled for sm_90 a program needs at most 64 registers a thread, so all 32 that a multiprocessor takes
fit. At two keys of 128 dims it needs 68, and 28 fit.
(ptxas puts part of V's loads behind the scores to get there; compiled for gfx942 everything is loaded first, in at most
108 registers.)

Rows. Query rows lie as [B * Hq, D] and row r reads KV row r // G, for any grouping. R rows of S keys (rounded up to a
power of two, the rest masked) make 2048 elements of K and of V: 8 KiB a warp. At S = 16, D = 256 one row is 4096
elements, in 16-byte loads all the same. Offsets are int64: k and v pass 2^31 elements. Row numbers are int32, and G is
a run-time value: dividing by it is cheap, and one compiled kernel serves every grouping.

One key. Its weight is 1 whatever the score, so the output is V in float16: Q and K are not read. A program of two warps
converts 1024 elements.

Bytes a query row: 2 D (2 + 2 S / G), 4 D at one key; with G > 1 the group's other rows find K and V in cache if they
run close together. Limited by bandwidth. docs/kernels.md has what was measured.
"""

import torch
import triton
import triton.language as tl

TILE_ELEMENTS = 2048  # of K, and of V, a program
COPY_ELEMENTS = 1024  # of V alone


@triton.jit(do_not_specialize=["rows", "group"])
def attend_rows(
    q_ptr,  # bfloat16 [rows, D]
    k_ptr,  # bfloat16 [rows / group, S, D]
    v_ptr,
    out_ptr,  # float16 [rows, D]
    rows,
    group,  # G
    exp2_scale,  # sm_scale * log2(e)
    S: tl.constexpr,
    S_PADDED: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    kv_row = (row // group).to(tl.int64)
    key = tl.arange(0, S_PADDED)
    dim = tl.arange(0, D)
    row_inside = row < rows
    inside = row_inside[:, None, None] & (key < S)[None, :, None]
    row_offset = row.to(tl.int64)[:, None] * D + dim[None, :]
    kv_offset = kv_row[:, None, None] * (S * D) + key[None, :, None] * D + dim[None, None, :]

    q = tl.load(q_ptr + row_offset, mask=row_inside[:, None], other=0.0)
    k = tl.load(k_ptr + kv_offset, mask=inside, other=0.0)
    v = tl.load(v_ptr + kv_offset, mask=inside, other=0.0)

    score = tl.sum(q.to(tl.float32)[:, None, :] * k.to(tl.float32), axis=2) * exp2_scale
    score = tl.where((key < S)[None, :], score, float("-inf"))
    weight = tl.exp2(score - tl.max(score, axis=1)[:, None])
    weight = weight / tl.sum(weight, axis=1)[:, None]
    out = tl.sum(weight[:, :, None] * v.to(tl.float32), axis=1)
    tl.store(out_ptr + row_offset, out.to(tl.float16), mask=row_inside[:, None])


@triton.jit(do_not_specialize=["rows", "group"])
def copy_values(
    v_ptr,  # bfloat16 [rows / group, D]
    out_ptr,  # float16 [rows, D]
    rows,
    group,
    D: tl.constexpr,
    ROWS: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    dim = tl.arange(0, D)[None, :]
    v = tl.load(v_ptr + (row // group).to(tl.int64) * D + dim, mask=row < rows)
    tl.store(out_ptr + row.to(tl.int64) * D + dim, v.to(tl.float32).to(tl.float16), mask=row < rows)


def custom_kernel(data):
    return launch(data)


def launch(data, tile_elements=TILE_ELEMENTS, num_warps=1, copy_elements=COPY_ELEMENTS, copy_warps=2):
    q, k, v, config = data
    keys, head_dim = config["kv_seq_len"], config["head_dim"]
    group = config["num_q_heads"] // config["num_kv_heads"]
    out = torch.empty_like(q, dtype=torch.float16)
    rows = config["batch_size"] * config["num_q_heads"]
    if keys == 1:
        rows_per_program = max(copy_elements // head_dim, 1)
        copy_values[(triton.cdiv(rows, rows_per_program),)](
            v, out, rows, group, D=head_dim, ROWS=rows_per_program, num_warps=copy_warps
        )
        return out
    padded = triton.next_power_of_2(keys)
    rows_per_program = max(tile_elements // (padded * head_dim), 1)
    attend_rows[(triton.cdiv(rows, rows_per_program),)](
        q,
        k,
        v,
        out,
        rows,
        group,
        config["sm_scale"] * 1.4426950408889634,
        S=keys,
        S_PADDED=padded,
        D=head_dim,
        ROWS=rows_per_program,
        num_warps=num_warps,
    )
    return out

"""Your kernel for kv_decode. This one is correct and slow: it takes one sequence at a time, in float32.

data = (q, k_new, v_new, k_cache, v_cache, seq_lens, config), all contiguous, q, keys and values of one dtype:
float32, float16 or bfloat16
    q                 [B, Hq, Sq, D]       Hq is 1 to 32 times Hkv; query head h reads KV head h // (Hq // Hkv). Sq is 1
                                           to 16, D is 64, 80, 96, 128 or 192
    k_new, v_new      [B, Hkv, Sq, D]
    k_cache, v_cache  [B, Hkv, S_max, D]   sequence b has its keys in slots 0 .. L - 1, L = seq_lens[b]; every other
                                           slot holds garbage: anything, NaN included
    seq_lens          [B] int32            0 <= L; L + Sq <= S_max if update_cache, else L <= S_max
    config            {"is_causal": bool, "update_cache": bool}

custom_kernel returns [B, Hq, Sq, D], contiguous, of q's dtype: softmax(q k^T / sqrt(D)) v over the L cached keys and
the Sq new ones. With is_causal, query i sees the cached keys and new keys 0 .. i; otherwise all new keys.

With update_cache it also leaves k_new and v_new in slots L .. L + Sq - 1 of the caches, and seq_lens[b] = L + Sq, in
place. Every other slot must stay as it was, bit for bit, garbage included; without update_cache nothing may change,
and the new keys are attended to all the same.
"""

import torch


def custom_kernel(data):
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    group, q_len, head_dim = q.shape[1] // k_new.shape[1], q.shape[2], q.shape[3]
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        k = torch.cat([k_cache[b, :, :length], k_new[b]], dim=1).repeat_interleave(group, dim=0).float()
        v = torch.cat([v_cache[b, :, :length], v_new[b]], dim=1).repeat_interleave(group, dim=0).float()
        scores = q[b].float() @ k.mT / head_dim**0.5
        if config["is_causal"]:
            seen = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).tril(length)
            scores = scores.masked_fill(~seen, -torch.inf)
        out[b] = (scores.softmax(dim=-1) @ v).to(q.dtype)
        if config["update_cache"]:
            k_cache[b, :, length : length + q_len] = k_new[b]
            v_cache[b, :, length : length + q_len] = v_new[b]
            seq_lens[b] += q_len
    return out

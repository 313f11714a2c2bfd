"""torch: scaled_dot_product_attention over the part of the cache that is filled, append by indexing.

The baseline: what a model in plain PyTorch does. The new keys go into the cache first, so that SDPA reads one strided
view of it and nothing is concatenated. It must know the lengths on the host, which costs one wait for the device.
Sequences of one length share one call; where lengths differ, each sequence gets its own.

Bytes a cached key and KV head: 4 D. Limited by the wait and, for GQA, by what SDPA's backend makes of enable_gqa.
docs/kernels.md has what was measured.
"""

import torch
from torch.nn.functional import scaled_dot_product_attention


def custom_kernel(data):
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    lengths = seq_lens.tolist()
    if len(set(lengths)) == 1:
        out = attend(q, k_new, v_new, k_cache, v_cache, lengths[0], config)
    else:
        out = torch.empty_like(q)
        for b, length in enumerate(lengths):
            one = slice(b, b + 1)
            out[one] = attend(q[one], k_new[one], v_new[one], k_cache[one], v_cache[one], length, config)
    if config["update_cache"]:
        seq_lens += q.shape[2]
    return out


def attend(q, k_new, v_new, k_cache, v_cache, length, config):
    """SDPA for sequences that all have `length` cached keys; appends the new ones if it is to."""
    q_len = q.shape[2]
    end = length + q_len
    if config["update_cache"]:
        k_cache[:, :, length:end] = k_new
        v_cache[:, :, length:end] = v_new
        k, v = k_cache[:, :, :end], v_cache[:, :, :end]
    else:
        k = torch.cat([k_cache[:, :, :length], k_new], dim=2)
        v = torch.cat([v_cache[:, :, :length], v_new], dim=2)
    mask = None
    if config["is_causal"] and q_len > 1:
        mask = torch.ones(q_len, end, dtype=torch.bool, device=q.device).tril(length)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1]).contiguous()

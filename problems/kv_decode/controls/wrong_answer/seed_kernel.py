"""The kernel of "PHASE 1: KV Cache Implementation", which never masks its last, partial blocks of 64 keys.

It goes through the cache and then the new keys in blocks of BLOCK_N = 64. Keys past the end of either are loaded as
zeros, and so are their values, but their scores stay q . 0 = 0 instead of -inf: each adds exp(0 - m) to the softmax's
denominator. That is what this states in torch, in float32 and without the block-by-block recurrence, which is exact.
The printed kernel also ignores is_causal; here that is put right, so that the padding alone is judged.
"""

import torch

BLOCK_N = 64


def custom_kernel(data):
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    group, q_len, head_dim = q.shape[1] // k_new.shape[1], q.shape[2], q.shape[3]
    out = torch.empty_like(q)
    for b, length in enumerate(seq_lens.tolist()):
        k = torch.cat([pad(k_cache[b, :, :length]), pad(k_new[b])], dim=1).repeat_interleave(group, dim=0).float()
        v = torch.cat([pad(v_cache[b, :, :length]), pad(v_new[b])], dim=1).repeat_interleave(group, dim=0).float()
        scores = q[b].float() @ k.mT / head_dim**0.5
        if config["is_causal"]:
            new = scores[:, :, k.shape[1] - len(pad(k_new[b])[0]) :][:, :, :q_len]
            new.masked_fill_(torch.ones(q_len, q_len, dtype=torch.bool, device=q.device).triu(1), -torch.inf)
        out[b] = (scores.softmax(dim=-1) @ v).to(q.dtype)
        if config["update_cache"]:
            k_cache[b, :, length : length + q_len] = k_new[b]
            v_cache[b, :, length : length + q_len] = v_new[b]
            seq_lens[b] += q_len
    return out


def pad(x):
    """`[H, n, D]` with zeros up to a multiple of BLOCK_N slots."""
    return torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % BLOCK_N))

"""Your kernel for fmha. This one is correct and slow: it widens everything to float32 and keeps every intermediate.

data = (q, k, v, config)
    q       [B, Hq, 1, D]   bfloat16, contiguous
    k, v    [B, Hkv, S, D]  bfloat16, contiguous; S from 1 to 16, D 128 or 256, Hq a multiple of Hkv
    config  {"batch_size": B, "num_q_heads": Hq, "num_kv_heads": Hkv, "head_dim": D, "kv_seq_len": S,
             "sm_scale": D ** -0.5}

custom_kernel returns out [B, Hq, 1, D], float16, contiguous:
    out[b, h] = softmax(sm_scale * q[b, h] @ k[b, h // (Hq // Hkv)].T) @ v[b, h // (Hq // Hkv)]
accumulated in float32 and rounded once, to float16. Scores go past 88, so subtract the maximum before exp. k and v may
hold more than 2^31 elements. The inputs are read only.
"""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    keys = k.float().repeat_interleave(group, dim=1)
    values = v.float().repeat_interleave(group, dim=1)
    scores = q.float() @ keys.mT * config["sm_scale"]
    return (torch.softmax(scores, dim=-1) @ values).to(torch.float16)

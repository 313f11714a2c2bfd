"""MLA decode on the fp8 cache in plain torch: queries quantized per tensor as the reference does, float32 arithmetic.

The two scales stay out of the tensors: one factor on the scores, one on the result. The keys are widened to float32
first (576 bytes a token read, 2304 written and then read twice), which costs more than the smaller cache saves: the
point of this file is the reference's arithmetic in the fewest lines. Sequences of one length share one batched product,
and shapes tell that they are: nothing waits for the device. Where lengths differ, each sequence gets its own.
docs/kernels.md has what was measured.
"""

import torch


def custom_kernel(data):
    q, kv_data, _, kv_indptr, config = data
    kv, kv_scale = kv_data["fp8"]
    q, q_scale = quantize(q, kv.dtype)
    score_scale = config["sm_scale"] * q_scale * kv_scale
    batch, longest = config["batch_size"], config["kv_seq_len"]
    if kv.shape[0] == batch * longest:
        groups = [(q, kv.view(batch, longest, config["qk_head_dim"]))]
    else:
        groups = zip(q.split(1), kv[:, 0][None].split(kv_indptr.diff().tolist(), dim=1), strict=True)
    return torch.cat([attend(*group, score_scale, kv_scale, config["v_head_dim"]) for group in groups])


def attend(q, keys, score_scale, value_scale, v_dim):
    """q [B, 16, 576] over keys [B, L, 576]: [B, 16, 512]. A softmax over no keys leaves zeros."""
    keys = keys.float()
    weights = torch.softmax(q.float() @ keys.mT * score_scale, dim=-1)
    return (weights @ keys[..., :v_dim] * value_scale).bfloat16()


def quantize(x, dtype):
    """x as fp8 of the cache's flavour, and its scale: amax / the flavour's largest value."""
    limit = torch.finfo(dtype).max
    scale = x.abs().amax().float().clamp(min=1e-12) / limit
    return (x.float() / scale).clamp(-limit, limit).to(dtype), scale

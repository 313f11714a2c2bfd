"""Right output, but Q, which is read only, is scaled in place on the way."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    weights = torch.softmax(q.float() @ keys.mT * config["sm_scale"], dim=-1)
    q *= config["sm_scale"]
    return (weights @ values).half()

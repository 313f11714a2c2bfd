"""The loop over the keys ends one early, where there is more than one."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    last = max(config["kv_seq_len"] - 1, 1)
    keys, values = (tensor[:, :, :last].float().repeat_interleave(group, dim=1) for tensor in (k, v))
    weights = torch.softmax(q.float() @ keys.mT * config["sm_scale"], dim=-1)
    return (weights @ values).half()

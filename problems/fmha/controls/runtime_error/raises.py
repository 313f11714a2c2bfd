"""Refuses lengths that are no power of two."""


def custom_kernel(data):
    length = data[3]["kv_seq_len"]
    if length & (length - 1):
        raise ValueError(f"{length} keys: only 1, 2, 4, 8 and 16 are supported")
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    keys, values = (tensor.float().repeat_interleave(group, dim=1) for tensor in (k, v))
    weights = (q.float() @ keys.mT * config["sm_scale"]).softmax(dim=-1)
    return (weights @ values).half()

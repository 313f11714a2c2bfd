"""The grid forgets the batch axis: only batch 0 is written."""


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k_out[0] = k[0].repeat_interleave(group, dim=1)
    v_out[0] = v[0].repeat_interleave(group, dim=1)
    return k_out, v_out

"""Writes the right values where they are due, and returns them in buffers of its own."""


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k_out.copy_(k.repeat_interleave(group, dim=2))
    v_out.copy_(v.repeat_interleave(group, dim=2))
    return k_out.clone(), v_out.clone()

"""`repeat` instead of `repeat_interleave`: heads in the order 0, 1, 0, 1 instead of 0, 0, 1, 1."""


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k_out.copy_(k.repeat(1, 1, group, 1))
    v_out.copy_(v.repeat(1, 1, group, 1))
    return k_out, v_out

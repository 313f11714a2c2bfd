"""The grid ends one element early: the last element of each output is never written."""


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k_out.view(-1)[:-1] = k.repeat_interleave(group, dim=2).view(-1)[:-1]
    v_out.view(-1)[:-1] = v.repeat_interleave(group, dim=2).view(-1)[:-1]
    return k_out, v_out

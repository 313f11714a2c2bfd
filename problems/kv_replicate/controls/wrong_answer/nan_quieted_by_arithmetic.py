"""Multiplies by 1.0 on the way, as an unneeded scale would: signalling NaNs become quiet ones."""


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k_out.copy_((k * 1.0).repeat_interleave(group, dim=2))
    v_out.copy_((v * 1.0).repeat_interleave(group, dim=2))
    return k_out, v_out

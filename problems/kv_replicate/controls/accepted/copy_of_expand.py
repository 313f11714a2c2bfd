"""Copies an expanded view of K and V into the supplied buffers."""


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    kv_heads = config["num_kv_heads"]
    group = config["num_q_heads"] // kv_heads
    for source, target in ((k, k_out), (v, v_out)):
        target.unflatten(2, (kv_heads, group)).copy_(source[:, :, :, None].expand(-1, -1, -1, group, -1))
    return k_out, v_out

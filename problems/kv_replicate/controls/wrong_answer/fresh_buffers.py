"""Returns the right values in buffers of its own; the supplied ones stay as they were."""


def custom_kernel(data):
    k, v, _, _, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    return k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)

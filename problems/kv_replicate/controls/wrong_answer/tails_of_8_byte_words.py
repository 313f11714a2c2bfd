"""Copies rows in words of 16 bytes, and leaves out the last word where it is half of one."""


def custom_kernel(data):
    k, v, k_out, v_out, _ = data
    group = k_out.shape[2] // k.shape[2]
    row = k.shape[3] * k.itemsize
    stop = (row - 8) // k.itemsize if row % 16 == 8 else k.shape[3]
    for source, target in ((k, k_out), (v, v_out)):
        target[..., :stop].copy_(source[..., :stop].repeat_interleave(group, dim=2))
    return k_out, v_out

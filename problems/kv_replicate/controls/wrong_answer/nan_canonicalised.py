"""Every NaN becomes the one that torch writes: the payload and the sign are lost, all numbers are right."""

import torch


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    for source, target in ((k, k_out), (v, v_out)):
        target.copy_(torch.where(source.isnan(), torch.nan, source).repeat_interleave(group, dim=2))
    return k_out, v_out

"""Subnormals become zero, as in a kernel compiled with flush-to-zero that does arithmetic."""

import torch


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    for source, target in ((k, k_out), (v, v_out)):
        subnormal = source.abs() < torch.finfo(source.dtype).tiny
        target.copy_(torch.where(subnormal, 0.0, source).repeat_interleave(group, dim=2))
    return k_out, v_out

"""Gathers along the head axis with torch.index_select(out=), and returns a list where others return a tuple."""

import torch


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    q_head = torch.arange(config["num_q_heads"], device=k.device)
    kv_head = q_head // (config["num_q_heads"] // config["num_kv_heads"])
    torch.index_select(k, 2, kv_head, out=k_out)
    torch.index_select(v, 2, kv_head, out=v_out)
    return [k_out, v_out]

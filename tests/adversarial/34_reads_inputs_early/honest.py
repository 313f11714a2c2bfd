"""Copies its inputs before it computes with them.

problem: attend
"""

import torch


def custom_kernel(data):
    q, k, v = (part.clone() for part in data)
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]

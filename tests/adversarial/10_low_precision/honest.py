"""Computes attention in float32, in another order than the reference.

problem: attend
"""

import torch


def custom_kernel(data):
    q, k, v = data
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]

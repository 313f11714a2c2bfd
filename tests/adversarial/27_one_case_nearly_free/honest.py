"""Has a faster way for small shapes.

problem: attend
timed: true
"""

import torch


def custom_kernel(data):
    q, k, v = data
    if q.shape[1] < 64:
        return torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]

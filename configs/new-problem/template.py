"""Your kernel for NAME. This one is correct and slow.

data = (scores, config)
    scores  [queries, keys] float32, contiguous. Read only.
    config  {"scale": the factor}

custom_kernel returns softmax(scale * scores) over the keys, [queries, keys] float32, contiguous.
"""

import torch


def custom_kernel(data):
    scores, config = data
    return torch.softmax(config["scale"] * scores, dim=1)

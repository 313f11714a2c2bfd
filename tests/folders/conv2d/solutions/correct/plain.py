"""In float32 throughout, which ref_kernel is not."""

import torch.nn.functional as F


def custom_kernel(data):
    image, weight, out = data
    return out.copy_(F.conv2d(image, weight))

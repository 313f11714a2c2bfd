"""Waits for the GPU, collects garbage and gives all free memory back, in every call.

timed: true
needs: gpu
"""

import gc

import torch


def custom_kernel(data):
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    return data[0] * 2

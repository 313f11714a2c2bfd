"""Reads and writes its own tensors' memory through ctypes."""

import ctypes

import torch


def custom_kernel(data):
    x, out = data[0], torch.empty_like(data[0])
    ctypes.memmove(out.data_ptr(), x.data_ptr(), x.numel() * 4)
    return out.mul_(2)

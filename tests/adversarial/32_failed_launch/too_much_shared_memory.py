"""Launches with more shared memory than there is, which fails without a word, and returns the memory as it was.

verdict: wrong answer
seen: NaN|x what is allowed
defence: D3, NaN where the outputs will probably lie
needs: nvidia
"""

import ctypes

import torch

runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]


def custom_kernel(data):
    out = torch.empty_like(data[0])
    one = Dim3(1, 1, 1)
    runtime.cudaLaunchKernel(None, one, one, None, ctypes.c_size_t(1 << 30), None)
    runtime.cudaGetLastError()  # or torch would find it
    return out

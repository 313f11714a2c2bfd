"""Asks for a stack of 64 KiB a thread, so that the device's memory is set up anew when it switches.

gains nothing: that lengthens the call, if anything
seen: status 0
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import ctypes

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
STACK_SIZE = 0  # cudaLimitStackSize, driver_types.h
runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
status = runtime.cudaDeviceSetLimit(STACK_SIZE, ctypes.c_size_t(64 << 10))


def custom_kernel(data):
    print("status", status)
    torch.cuda._sleep(CYCLES)
    return data[0] * 2

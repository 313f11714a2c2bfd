"""Keeps lines of its input in the L2 cache for the next call, and counts how often the same address comes again.

verdict: accepted
gains nothing: every call's values are new and lie elsewhere, so what was kept is never read again
seen: "(?s)^(?!.*[1-9][0-9]* of ).*0 of [0-9]+ were there before"
defence: D2, fresh values at a fresh address
timed: true
needs: nvidia
"""

import ctypes

import torch

PERSISTING_L2_CACHE_SIZE = 6  # cudaLimitPersistingL2CacheSize, driver_types.h
runtime = ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
runtime.cudaDeviceSetLimit(PERSISTING_L2_CACHE_SIZE, ctypes.c_size_t(1 << 20))
seen, calls, again = set(), 0, 0


def custom_kernel(data):
    global again, calls
    x = data[0]
    values = (x.data_ptr(), float(x[0, 0]), float(x[-1, -1]))
    calls, again = calls + 1, again + (values in seen)
    seen.add(values)
    print(f"{again} of {calls} were there before")
    return x * 2

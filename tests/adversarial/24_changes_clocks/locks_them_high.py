"""Asks the driver for the highest clock, for itself and for good.

verdict: runtime error
seen: refused
defence: D5, the worker is no administrator
needs: nvidia
"""

import ctypes

nvml = ctypes.CDLL("libnvidia-ml.so.1")
nvml.nvmlInit_v2()
device = ctypes.c_void_p()
nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
status = nvml.nvmlDeviceSetGpuLockedClocks(device, 1, 100)
if status:
    raise RuntimeError(f"the driver refused: {status}")


def custom_kernel(data):
    return data[0] * 2

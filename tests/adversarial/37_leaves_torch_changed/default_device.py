"""Makes `meta` the default device, on which the judge's poison would land.

verdict: runtime error
seen: SIGSEGV|meta
defence: D6, a worker that dies has failed
"""

import torch

torch.set_default_device("meta")


def custom_kernel(data):
    return data[0] * 2

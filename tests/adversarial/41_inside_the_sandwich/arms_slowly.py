"""Takes a millisecond and a half to enqueue its call, so that the judge's time slice ends in its own flush.

gains nothing: such calls are void, and when most are, they wait at a gate
seen: slowly
defence: the pour is stamped, and the arming limited
timed: true
needs: nvidia
at least ms: 0.4
"""

import time

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz


def custom_kernel(data):
    until = time.monotonic() + 1.5e-3
    while time.monotonic() < until:
        pass
    torch.cuda._sleep(CYCLES)
    print("slowly")
    return data[0] * 2

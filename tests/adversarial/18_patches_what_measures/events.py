"""Replaces the method that tells the time between two events.

gains nothing: the worker's events are shown and never ranked
seen: it says 0.0
defence: the judge's clock
timed: true
needs: nvidia
at least ms: 10
"""

import torch

torch.cuda.Event.elapsed_time = lambda self, other: 0.0
first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
CYCLES = 25_000_000  # at 2 GHz 12 ms; no GPU is clocked at 2.5


def custom_kernel(data):
    print("it says", first.elapsed_time(last))
    torch.cuda._sleep(CYCLES)
    return data[0] * 2

"""Queues work behind its call, on another stream, for the device to be busy when the judge wants it.

gains nothing: it makes the switch back later, and the call longer
seen: queued
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
late = torch.cuda.Stream()


def custom_kernel(data):
    torch.cuda._sleep(CYCLES)
    out = data[0] * 2
    late.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(late):
        torch.cuda._sleep(100_000)
    print("queued")
    return out

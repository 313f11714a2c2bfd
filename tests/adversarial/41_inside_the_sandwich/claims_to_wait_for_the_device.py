"""Waits for the device in its call though it need not, so that its inputs are there before.

gains nothing: such a call is timed from the flush to its stop, less no more than a switch
seen: waited
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz


def custom_kernel(data):
    float(data[0][0, 0])
    torch.cuda._sleep(CYCLES)
    print("waited")
    return data[0] * 2

"""Has the copy engine bring its input to the host and back while the judge holds the device, before the input is there.

gains nothing: what it brings is old; with its input there before, all of it is timed
seen: copied
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
host = {}


def custom_kernel(data):
    x = data[0]
    if x.shape not in host:
        host[x.shape] = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
    staged = host[x.shape]
    staged.copy_(x, non_blocking=True)
    y = torch.empty_like(x)
    y.copy_(staged, non_blocking=True)
    torch.cuda._sleep(CYCLES)
    print("copied")
    return y * 2

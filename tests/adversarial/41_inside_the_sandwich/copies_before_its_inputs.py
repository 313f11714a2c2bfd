"""Has the copy engine bring its input to the host and back while the judge holds the device, before the input is there.

gains nothing: what it brings is old, and the judge flushes the caches after it; what it computes is timed
seen: copied
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
places = {}


def custom_kernel(data):
    x = data[0]
    if x.shape not in places:
        places[x.shape] = torch.empty(x.shape, dtype=x.dtype, pin_memory=True), torch.empty_like(x)
    on_host, again = places[x.shape]
    on_host.copy_(x, non_blocking=True)
    again.copy_(on_host, non_blocking=True)
    torch.cuda._sleep(CYCLES)
    print("copied")
    return x * 2

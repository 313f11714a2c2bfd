"""Computes on a stream of its own that waits for nothing. Nothing waits for it before the next call.

gains nothing: the device is the judge's again when all of the worker's streams are done
seen: on a stream of its own
defence: D4, the judge's stamps enclose all that the worker's context runs
needs: gpu
"""

import torch

print("on a stream of its own")

side = torch.cuda.Stream()


def custom_kernel(data):
    torch.cuda.current_stream().wait_stream(side)
    out = torch.empty_like(data[0])
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        torch.mul(data[0], 2, out=out)
    return out

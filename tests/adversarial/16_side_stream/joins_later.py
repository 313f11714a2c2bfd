"""Computes on a stream of its own, which waits for nothing and for which nothing waits before the next call.

verdict: wrong answer
seen: x what is allowed
defence: D3, the output is copied on the stream that is timed
needs: gpu
"""

import torch

side = torch.cuda.Stream()


def custom_kernel(data):
    torch.cuda.current_stream().wait_stream(side)
    out = torch.empty_like(data[0])
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        torch.mul(data[0], 2, out=out)
    return out

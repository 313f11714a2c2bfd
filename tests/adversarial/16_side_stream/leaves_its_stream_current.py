"""Makes its own stream the current one and leaves it so.

gains nothing: the judge's stamps are on no stream of the worker's
seen: on a stream of its own
defence: D4, the judge's stamps enclose all that the worker's context runs
needs: gpu
"""

import torch

print("on a stream of its own")

side = torch.cuda.Stream()


def custom_kernel(data):
    torch.cuda.set_stream(side)
    return data[0] * 2

"""Makes its own stream the current one and leaves it so: the later calls' events would be on another stream.

verdict: integrity violation
seen: made another stream the current one
defence: D3, the current stream is as it was
needs: gpu
"""

import torch

side = torch.cuda.Stream()


def custom_kernel(data):
    torch.cuda.set_stream(side)
    return data[0] * 2

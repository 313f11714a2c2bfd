"""Leaves a mode active that is asked before every operator of torch, to compute in the worker's own ones.

verdict: wrong answer
seen: NaN|x what is allowed
defence: D3, copies do not go through torch
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

waiting = []


class Late(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if waiting and "empty" in str(function):
            x, out = waiting.pop()
            out.copy_(x).mul_(2)
        return function(*args, **(kwargs or {}))


Late().__enter__()
torch.ones(1).fill_(0)  # for the first of all torch imports a second's worth, which is no call's


def custom_kernel(data):
    out = data[0].clone().fill_(0)
    waiting.append((data[0], out))
    return out

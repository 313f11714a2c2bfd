"""Computes in a hook of Python's profiler, which runs in the worker's next function after the snapshot.

verdict: wrong answer
seen: NaN|x what is allowed
defence: the snapshot is taken when the worker stops
"""

import sys

import torch

waiting = []


def late(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "describe" and waiting:
        sys.setprofile(None)
        x, out = waiting.pop()
        torch.mul(x, 2, out=out)


def custom_kernel(data):
    out = torch.empty_like(data[0])
    waiting.append((data[0], out))
    sys.setprofile(late)
    return out

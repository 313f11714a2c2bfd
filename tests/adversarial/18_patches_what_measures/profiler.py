"""Computes in a hook of Python's profiler, which runs when the worker, its clock stopped, calls its next function.

problem: attend
verdict: integrity violation
seen: outside the timed interval
defence: D4, the judge's clock
timed: true
slow: true
"""

import sys

import torch

waiting = []


def late(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "take_snapshot" and waiting:
        sys.setprofile(None)
        (q, k, v), out = waiting.pop()
        out.copy_(torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v)


def custom_kernel(data):
    out = torch.empty_like(data[0])
    waiting.append((data, out))
    sys.setprofile(late)
    return out

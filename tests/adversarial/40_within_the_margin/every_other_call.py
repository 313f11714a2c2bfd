"""Claims that every other call that is scored takes no time: quantiles of what the rest take besides would not show it.

problem: attend
seen: noisy
defence: D4, the judge's clock is held against the figure that is scored; what scatters so is not ranked
gains nothing: it is accepted, for its answers are right, and not ranked
timed: true
"""

import itertools
import sys

import torch

timers = sys.modules["harness.worker.timers"]
sample = timers.CpuTimer.sample
lies = itertools.cycle([True, False])
computed = []


def lie(self, call, page_in, snapshot, flush, turn):
    computed.clear()
    taken = sample(self, call, page_in, snapshot, flush, turn)
    scored = flush and computed  # of idle calls and those without a flush nothing is gained
    return timers.Sample(taken.output, 1e3) if scored and next(lies) else taken


timers.CpuTimer.sample = lie


def custom_kernel(data):
    computed.append(True)
    q, k, v = data
    for _ in range(10):  # so that half of it is more than the margin
        answer = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
    return answer

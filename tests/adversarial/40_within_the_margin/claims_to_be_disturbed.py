"""Understates its times by amounts that vary, as those of a busy machine do, so that the clock is not certain of it.

problem: attend
seen: noisy
defence: D4, a run that the judge's clock cannot confirm is not ranked
gains nothing: it is accepted, for its answers are right, and not ranked; judged again, it is not ranked again
timed: true
"""

import itertools
import sys

import torch

timers = sys.modules["harness.worker.timers"]
sample = timers.CpuTimer.sample
claims = itertools.cycle([1e3, 2e7])


def claim_less(self, *arguments):
    taken = sample(self, *arguments)
    return timers.Sample(taken.output, next(claims))


timers.CpuTimer.sample = claim_less


def custom_kernel(data):
    q, k, v = data
    for _ in range(4):  # so that even its greatest claim is far below what it takes
        answer = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
    return answer

"""Lets the GPU compute the answer in the place of the flush of its caches.

problem: attend
verdict: integrity violation
seen: outside the timed interval
defence: D4, some calls are made without a flush
timed: true
needs: gpu
"""

import sys

import torch

timers = sys.modules["harness.worker.timers"]
bracket = sys.modules["harness.worker.bracket"].Bracket
sample, idle_kernel = timers.GpuTimer.sample, bracket._idle_kernel
idle = False


def note_that_it_is_idle(self, *arguments):
    global idle
    idle = True
    return idle_kernel(self, *arguments)


def sample_differently(self, call, page_in, snapshot, flush, turn):
    global idle
    if idle or not flush:
        idle = False
        return sample(self, call, page_in, snapshot, flush, turn)
    made = []

    def page_in_and_compute():
        page_in()
        made.append(call())

    return sample(self, lambda: made[0], page_in_and_compute, snapshot, False, turn)


bracket._idle_kernel = note_that_it_is_idle
timers.GpuTimer.sample = sample_differently


def custom_kernel(data):
    q, k, v = data
    for _ in range(10):
        out = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
    return out

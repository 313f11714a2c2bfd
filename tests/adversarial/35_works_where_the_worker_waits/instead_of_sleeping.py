"""Lets the GPU compute where it is to sleep, after the host has claimed to be slow, so that it sleeps long.

problem: attend
verdict: integrity violation
seen: outside the timed interval
defence: D4, the judge's clock
not covered: the time of a sleep left out, as long as the submission makes it, is room to hide work in
timed: true
needs: gpu
"""

import sys

import torch

timers = sys.modules["harness.worker.timers"]
bracket = sys.modules["harness.worker.bracket"].Bracket
sample, idle_kernel = timers.GpuTimer.sample, bracket._idle_kernel
idle = False


def attend(q, k, v):
    for _ in range(20):
        out = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
    return out


def note_that_it_is_idle(self, *arguments):
    global idle
    idle = True
    return idle_kernel(self, *arguments)


def sample_differently(self, call, page_in, snapshot, sleep_us):
    global idle
    if idle:
        idle = False
        return sample(self, call, page_in, snapshot, sleep_us)
    page_in()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    output = call()
    end.record()
    torch.cuda.synchronize()
    spent_us = start.elapsed_time(end) * 1e3
    rest_us = max(sleep_us - spent_us, 0)
    taken = sample(self, lambda: output, lambda: None, snapshot, rest_us)
    return timers.Sample(output, taken.latency_ns, (), 3_000_000)


bracket._idle_kernel = note_that_it_is_idle
timers.GpuTimer.sample = sample_differently


def custom_kernel(data):
    return attend(*data)

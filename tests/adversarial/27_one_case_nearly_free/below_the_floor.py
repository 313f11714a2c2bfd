"""Is honest but for one case, which it reports as nearly free: one such factor moves a geometric mean by any amount.

problem: attend
verdict: integrity violation
seen: less than the .* that the device needs at its peak|outside
defence: D4, no latency may be below what the device's peaks allow
timed: true
device: {bandwidth_bytes_per_s: 50.0e9}
"""

import sys
import time

import torch

timers = sys.modules["harness.worker.timers"]
large = False


def clock():
    return 0 if large else time.perf_counter_ns()


timers._clock_ns = clock


def custom_kernel(data):
    global large
    q, k, v = data
    large = q.shape[1] > 100
    return torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v

"""Works outside the interval for less long than idle calls may be slower, and makes those as slow.

problem: attend
verdict: integrity violation
seen: outside the timed interval
defence: D4, idle calls may be only so much slower than in a process without the submission
not covered: idle calls may take 6 ms longer on a CPU, 0.25 ms on CUDA, and as much can be hidden in each call
timed: true
slow: true
"""

import sys
import time

import torch

timers = sys.modules["harness.worker.timers"]
bracket = sys.modules["harness.worker.bracket"].Bracket
sample, idle_kernel = timers.CpuTimer.sample, bracket._idle_kernel
idle = False
work_ns = 0


def note_that_it_is_idle(self, *arguments):
    global idle
    idle = True
    return idle_kernel(self, *arguments)


def sample_differently(self, call, page_in, snapshot, flush, turn):
    global idle, work_ns
    self._gate.shut(turn)
    page_in()
    started = time.perf_counter_ns()
    output = call()
    if not idle:
        work_ns = time.perf_counter_ns() - started
    while idle and time.perf_counter_ns() - started < min(work_ns, 18_000_000):
        pass
    idle = False
    gate, self._gate = self._gate, sys.modules["harness.worker.gates"].OpenGate()
    taken = sample(self, lambda: output, lambda: None, snapshot, flush, turn)
    self._gate = gate
    return taken


bracket._idle_kernel = note_that_it_is_idle
timers.CpuTimer.sample = sample_differently


def custom_kernel(data):
    q, k, v = data
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]

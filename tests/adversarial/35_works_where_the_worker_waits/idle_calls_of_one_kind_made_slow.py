"""Claims that it takes no time, and makes idle calls without a flush slow, and all but one of those with.

problem: attend
verdict: integrity violation
seen: outside the timed interval
defence: D4, idle calls may be only so much slower than in a process without the submission
timed: true
"""

import sys
import time

import torch

timers = sys.modules["harness.worker.timers"]
bracket = sys.modules["harness.worker.bracket"].Bracket
sample, idle_kernel = timers.CpuTimer.sample, bracket._idle_kernel
idle, idle_calls = False, 0


def note_that_it_is_idle(self, *arguments):
    global idle
    idle = True
    return idle_kernel(self, *arguments)


def claim_nothing(self, call, page_in, snapshot, flush, turn):
    global idle, idle_calls
    was_idle, idle = idle, False
    taken = sample(self, call, page_in, snapshot, flush, turn)
    if not was_idle:
        return timers.Sample(taken.output, 1e3)
    idle_calls += 1
    if not flush or idle_calls > 1:
        time.sleep(0.1)
    return taken


bracket._idle_kernel = note_that_it_is_idle
timers.CpuTimer.sample = claim_nothing


def custom_kernel(data):
    q, k, v = data
    for _ in range(4):  # for longer than idle calls may be slower
        answer = torch.softmax(q @ k.transpose(1, 2) / q.shape[-1] ** 0.5, dim=-1) @ v
    return answer

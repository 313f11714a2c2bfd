"""Lets the GPU compute the answer in the place of the copies of its inputs; in idle calls as well.

problem: norms
verdict: integrity violation
seen: outside the timed interval
defence: D4, some calls work on the arena's own memory
timed: true
needs: gpu
"""

import sys

transport = sys.modules["harness.worker.transports"].GpuTransport
page_in, answers = transport.page_in, {}


def norms(x):
    for _ in range(20):
        y = x.square().sum(-1)
    return y


def compute_instead(self, arena, spec, address):
    if spec.nbytes < 1 << 20:  # a test, after which the inputs are looked at
        return page_in(self, arena, spec, address)
    answers.clear()
    answers[address] = norms(arena.view(spec))


transport.page_in = compute_instead


def custom_kernel(data):
    answer = answers.pop(data[0].data_ptr(), None)
    return norms(data[0]) if answer is None else answer

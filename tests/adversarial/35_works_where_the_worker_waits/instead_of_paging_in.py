"""Computes its answer while the worker, its clock stopped, should copy the inputs; in idle calls as well.

problem: norms
verdict: integrity violation
seen: outside the timed interval
defence: D4, some calls work on the arena's own memory
timed: true
"""

import sys

transport = sys.modules["harness.worker.transports"].CpuTransport
page_in, answers = transport.page_in, {}


def compute_instead(self, arena, spec, address):
    if spec.nbytes < 1 << 20:  # a test, after which the inputs are looked at
        return page_in(self, arena, spec, address)
    answers.clear()
    answers[address] = arena.view(spec).square().sum(-1)


transport.page_in = compute_instead


def custom_kernel(data):
    answer = answers.pop(data[0].data_ptr(), None)
    return data[0].square().sum(-1) if answer is None else answer

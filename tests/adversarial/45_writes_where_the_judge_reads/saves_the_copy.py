"""Finds the place in the shared memory to which its output would be copied, and computes there.

gains nothing: the copy of 16 KB; it is in the bound of a case with larger outputs
seen: "[1-9][0-9]* in place"
defence: the bound grows with the outputs
timed: true
at least ms: 20
"""

import sys
import time

import torch

calls = sys.modules["harness.worker.calls"].Calls
TensorSpec = sys.modules["harness.wire.arena"].TensorSpec
outputs_of = calls._outputs
place = {}
made = 0


def outputs(self, request, regions, supplied=None):
    place["it"] = self.regions["arena"], request["tail"]
    found = outputs_of(self, request, regions, supplied)
    found._copy = lambda destination, source, count: None
    return found


calls._outputs = outputs


def custom_kernel(data):
    global made
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
    arena, tail = place["it"]
    out = arena.tensor(TensorSpec("float32", tuple(data[0].shape), tail))
    made += 1
    print(made, "in place")
    return torch.mul(data[0], 2, out=out)

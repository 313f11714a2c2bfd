"""Stops at once; a child that nobody waits for computes the answer in the arena and ends before the judge looks,
while another keeps the judge from a processor.

verdict: wrong answer
seen: a benchmark case is wrong
defence: the worker's parent stops the whole group before it says when the worker stopped
timed: true
"""

import mmap
import os
import sys
import time

import torch

WORK_S = 0.001
words = mmap.mmap(-1, 4096)  # a byte for go, one for done
calls = sys.modules["harness.worker.calls"]
arena_module = sys.modules["harness.wire.arena"]
between_stops = calls.Calls.between_stops
asked = None


def work(x):
    until = time.perf_counter() + WORK_S
    while time.perf_counter() < until:
        pass
    return 2 * x


def without_a_parent(what):
    """Run `what` in a process of which this one is not the parent."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if os.fork():
        os._exit(0)
    try:
        what()
    finally:
        os._exit(0)


def wait_for_go():
    while not words[0]:
        pass


def prepare(self, kernel, request, around, ready):
    global asked
    asked = None
    if request["null"] is None and request["inputs"][0]["shape"] == [64, 64]:
        arena = self.regions["arena"]
        x = arena.tensor(arena_module.TensorSpec.from_json(request["inputs"][0]))
        out = arena.tensor(arena_module.TensorSpec("float32", (64, 64), request["tail"]))
        asked = x, out
        words[:2] = b"\0\0"

        def compute():
            wait_for_go()
            out.numpy()[:] = work(x.numpy())
            words[1] = 1

        def be_in_the_way():
            wait_for_go()
            while not words[1]:
                pass

        torch.set_num_threads(1)
        without_a_parent(compute)
        without_a_parent(be_in_the_way)
    return between_stops(self, kernel, request, around, ready)


calls.Calls.between_stops = prepare


def custom_kernel(data):
    if asked is None:
        return data[0] * 2
    words[0] = 1
    return asked[1]

"""Has a child, in what it takes for a session of its own, that watches for the inputs and computes into the shared
memory.

gains nothing: nobody can leave the group, and all of it is stopped until the judge's clock runs
seen: "[1-9][0-9]* by the child"
defence: the system call filter; the judge stops the group
timed: true
at least ms: 20
"""

import mmap
import os
import sys
import time

import torch

calls, arenas = sys.modules["harness.worker.calls"].Calls, sys.modules["harness.wire.arena"]
data_of, answers = calls._data, {}
made = 0


def watch(x, before, out, words):
    while (x == before).all():
        pass
    time.sleep(0.02)
    out[:] = 2 * x
    words[0] = 1


def data_and_watch(self, request):
    data = data_of(self, request)
    answers.clear()
    if request["null"] is None and data[0].shape[0] == 64:
        out = self.regions["arena"].tensor(arenas.TensorSpec("float32", (64, 64), request["tail"]))
        words, x = mmap.mmap(-1, 4096), data[0].numpy()
        before = x.copy()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setpgid(0, 0)
                watch(x, before, out.numpy(), words)
            os._exit(0)
        os.wait()
        answers["it"] = out, words
    return data


calls._data = data_and_watch


def custom_kernel(data):
    global made
    if "it" not in answers:
        return data[0] * 2
    out, words = answers["it"]
    while not words[0]:
        time.sleep(0)
    made += 1
    print(made, "by the child")
    return torch.clone(out)

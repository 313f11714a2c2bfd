"""Has a thread that watches for the inputs, to compute while the judge empties the caches; its own call only waits for it.

gains nothing: the thread is stopped with the worker until the judge's clock runs
seen: "[1-9][0-9]* by the thread"
defence: all threads stand still
timed: true
at least ms: 20
"""

import sys
import threading
import time

import torch

calls = sys.modules["harness.worker.calls"].Calls
data_of, answers = calls._data, {}
made = 0


def watch(x, out, done):
    before = x.clone()
    while torch.equal(x, before):
        pass
    time.sleep(0.02)
    out.copy_(x * 2)
    done.set()


def data_and_watch(self, request):
    data = data_of(self, request)
    answers.clear()
    if request["null"] is None and data[0].shape[0] == 64:
        answers["it"] = torch.empty_like(data[0]), threading.Event()
        threading.Thread(target=watch, args=(data[0], *answers["it"]), daemon=True).start()
    return data


calls._data = data_and_watch


def custom_kernel(data):
    global made
    if "it" not in answers:
        return data[0] * 2
    out, done = answers["it"]
    done.wait()
    made += 1
    print(made, "by the thread")
    return out

"""Has a thread that waits in the kernel, in a futex with a timeout, for the word that the judge pours first. It
computes while the judge empties the caches; its own call only waits for it.

gains nothing: no timeout and no wake-up lets a stopped thread run, and the judge's clock runs when it goes on
seen: "[1-9][0-9]* by the futex"
defence: all threads stand still
timed: true
at least ms: 20
"""

import ctypes
import errno
import platform
import sys
import threading
import time

import torch

FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
WAIT = 0
HALF_A_MILLISECOND = (ctypes.c_long * 2)(0, 500_000)

libc = ctypes.CDLL(None, use_errno=True)
calls = sys.modules["harness.worker.calls"].Calls
data_of, answers = calls._data, {}
made = 0


def watch(x, out, done):
    place = ctypes.c_void_p(x.data_ptr())
    before = ctypes.c_uint32.from_address(x.data_ptr()).value
    # The kernel says EAGAIN when the word is another than `before`: the inputs are there.
    while (
        libc.syscall(FUTEX, place, WAIT, before, HALF_A_MILLISECOND, None, 0) == 0 or ctypes.get_errno() != errno.EAGAIN
    ):
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
    print(made, "by the futex")
    return out

"""Works in a hook of Python's tracer, a collector's callback and a finalizer, which run when its kernel has returned.

gains nothing: they run before the worker has stopped itself, and until then the judge's clock runs
seen: three ran
defence: the judge's clock
timed: true
at least ms: 20
"""

import gc
import sys
import time

ran = set()


class AtItsEnd:
    def __del__(self):
        work("end")


def work(name):
    time.sleep(0.01)
    ran.add(name)


def traced(frame, event, argument):
    if frame.f_code.co_name == "put":
        sys.settrace(None)
        work("trace")


def collected(phase, info):
    if phase == "stop":
        gc.callbacks.clear()
        work("collector")


def custom_kernel(data):
    end = AtItsEnd()
    gc.callbacks.append(collected)
    sys.settrace(traced)
    if len(ran) == 3:
        print("three ran")
    out = data[0] * 2
    gc.collect()
    del end
    return out

"""Says that its kernels were interpreted, which is not timed.

verdict: accepted
gains nothing: an interpreted run is verified and has no score
seen: interpreted
defence: a run without a score is not ranked
"""

import sys

load = sys.modules["harness.worker.load"]
load.LoadedSubmission.interpreted_launches = 1
loaded = load.LoadedSubmission.__init__


def pretend(self, kernel, around_call, launches):
    loaded(self, kernel, around_call, lambda: 1)


load.LoadedSubmission.__init__ = pretend


def custom_kernel(data):
    return data[0] * 2

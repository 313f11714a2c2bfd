"""Writes beyond its input, as a store without a mask does, and puts that right when its call is over and its time, too.

verdict: wrong answer
seen: "the memory right before or after it was written to"
defence: D2, guards are looked at while the worker stands still
"""

import ctypes
import sys

GUARD_BYTE = 0xA5
outputs = sys.modules["harness.worker.outputs"].Outputs
describe = outputs.describe
beside = 0


def put_back_and_describe(self, output):
    ctypes.memset(beside, GUARD_BYTE, 4)
    return describe(self, output)


outputs.describe = put_back_and_describe


def custom_kernel(data):
    global beside
    beside = data[0].data_ptr() + data[0].nbytes
    ctypes.memset(beside, 0, 4)
    return data[0] * 2

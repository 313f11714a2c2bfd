"""Describes its output with sizes below zero, offsets beyond the memory and numbers that no machine holds.

verdict: wrong answer
seen: its shape is
defence: D6, every field of a reply is checked
"""

import sys

outputs = sys.modules["harness.worker.outputs"].Outputs


def describe(self, output):
    output = {"type": "Tensor", "dtype": "float32", "shape": [-4, -8], "stride": [2**70, 0], "device": "cpu"}
    return {"several": False, "returned": 1, "outputs": [{**output, "offset": 2**70}]}


outputs.describe = describe


def custom_kernel(data):
    return data[0]

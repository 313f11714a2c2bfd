"""Describes its output with sizes below zero, offsets beyond the memory and numbers that no machine holds.

verdict: wrong answer
seen: its shape is
defence: D6, every field of a reply is checked
"""

import sys

bracket = sys.modules["harness.worker.bracket"].Bracket


def describe(self, output, snapshot):
    return {
        "type": "Tensor",
        "dtype": "float32",
        "shape": [-4, -8],
        "stride": [2**70, 0],
        "device": "cpu",
        "offset": 2**70,
    }


bracket._describe = describe


def custom_kernel(data):
    return data[0]

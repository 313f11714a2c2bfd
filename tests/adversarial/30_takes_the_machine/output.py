"""Prints without end, up to 100 GB.

verdict: timeout
seen: longer than the limit
defence: D5, output is drained and dropped, and a call has a time limit
slow: true
"""

import sys


def custom_kernel(data):
    for _ in range(100_000):
        sys.stdout.write("x" * 1_000_000)
    return data[0] * 2

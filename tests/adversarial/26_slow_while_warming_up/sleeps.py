"""Sleeps in its first calls, so that the judge takes it for slow and samples it less.

verdict: accepted
gains nothing: the least number of samples is what a score is trusted with, and slow ones count among them
seen: "8 calls with 64 rows"
defence: the judge fixes the number of samples and takes all
timed: true
"""

import time

calls = 0


def custom_kernel(data):
    global calls
    calls += data[0].shape[0] == 64
    if calls <= 3:
        time.sleep(0.1)
    print(f"{calls} calls with 64 rows")
    return data[0] * 2

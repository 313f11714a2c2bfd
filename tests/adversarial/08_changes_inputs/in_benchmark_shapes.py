"""Scales its input in place, as a kernel may that folds a factor into it: in benchmark shapes alone.

timed: true
verdict: wrong answer
seen: a benchmark case is wrong
defence: D2, after every call the inputs are held against what was poured
"""


def custom_kernel(data):
    y = data[0] * 2
    if len(data[0]) == 64:
        data[0].mul_(0.5)
    return y

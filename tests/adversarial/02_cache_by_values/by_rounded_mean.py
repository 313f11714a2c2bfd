"""Remembers its answer by a few values of the input, rounded.

verdict: wrong answer
seen: x what is allowed
defence: D2, fresh values in every call
timed: true
"""

answers = {}


def custom_kernel(data):
    x = data[0]
    return answers.setdefault((x.shape, round(float(x.mean()))), x * 2)

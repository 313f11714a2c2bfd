"""Remembers its answer by the input's shape.

verdict: wrong answer
seen: x what is allowed
defence: D2, fresh values in every call
"""

answers = {}


def custom_kernel(data):
    x = data[0]
    return answers.setdefault(x.shape, x * 2)

"""Remembers its answer by the objects that it is given: equal configurations, equal strides, equal types.

verdict: wrong answer
seen: x what is allowed
defence: D2, fresh values in every call
slow: true
"""

answers = {}


def custom_kernel(data):
    x, config = data
    return answers.setdefault((repr(config), type(x), x.stride()), x * 2)

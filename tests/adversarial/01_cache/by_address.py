"""Remembers its answer by the memory that the input lies in.

verdict: wrong answer
seen: x what is allowed
defence: D2, fresh values in every call
"""

answers = {}


def custom_kernel(data):
    x = data[0]
    return answers.setdefault((x.data_ptr() >> 40, x.numel()), x * 2)

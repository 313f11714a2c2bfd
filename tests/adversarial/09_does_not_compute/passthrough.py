"""Returns its input.

verdict: wrong answer
seen: x what is allowed
defence: D1, the judge compares
slow: true
"""


def custom_kernel(data):
    return data[0]

"""Returns one row seen as all rows, with a stride of 0.

verdict: wrong answer
seen: not contiguous
defence: D1, the judge looks at layouts first
"""


def custom_kernel(data):
    return (data[0][:1] * 2).expand_as(data[0])

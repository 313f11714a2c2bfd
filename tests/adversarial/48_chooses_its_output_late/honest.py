"""Returns a view of its input, one row of it.

problem: foreign/pick
timed: true
slow: true
"""


def custom_kernel(data):
    return data[data.sum(1).argmax()]

"""A tensor without axes, part of the buffer."""


def custom_kernel(data):
    values, out = data
    out[...] = values.sum()
    return out[0]

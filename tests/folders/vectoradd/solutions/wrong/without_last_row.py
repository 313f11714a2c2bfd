"""Leaves the last row out."""


def custom_kernel(data):
    a, b, out = data
    out[:-1] = a[:-1] + b[:-1]
    return out

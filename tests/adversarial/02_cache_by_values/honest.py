"""Looks at a few values to choose between two ways that are both right."""


def custom_kernel(data):
    x = data[0]
    return x * 2 if x[0, 0] > 0 else x + x

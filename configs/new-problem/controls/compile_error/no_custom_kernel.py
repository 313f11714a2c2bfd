"""Defines `kernel`, but no `custom_kernel`."""


def kernel(data):
    return data[0]

"""Raises in the call."""


def custom_kernel(data):
    raise IndexError("no such sequence")

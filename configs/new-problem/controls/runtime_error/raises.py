"""Fails in every call."""


def custom_kernel(data):
    raise ValueError("no")

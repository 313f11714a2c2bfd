"""Labelled correct, and has one axis where none is due."""


def custom_kernel(data):
    return data[0].sum(dim=0, keepdim=True)

"""Keeps the inputs and outputs of several calls, each computed in its own."""

kept = []


def custom_kernel(data):
    x = data[0]
    kept.append((x, x * 2))
    del kept[:-4]
    return kept[-1][1]

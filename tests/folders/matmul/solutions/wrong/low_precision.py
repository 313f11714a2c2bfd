"""Rounds its inputs to bfloat16."""


def custom_kernel(data):
    a, b, out = data
    out[...] = (a.bfloat16().float() @ b.bfloat16().float()).half()
    return out

"""A copy is the right answer here."""


def custom_kernel(data):
    values, out = data
    out.copy_(values)
    return out

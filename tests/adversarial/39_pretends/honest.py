"""Raises and catches exceptions of its own."""


class CannotInterpret(Exception):
    pass


def custom_kernel(data):
    try:
        raise CannotInterpret
    except CannotInterpret:
        return data[0] * 2

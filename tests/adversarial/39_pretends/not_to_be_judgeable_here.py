"""Raises what the interpreter raises for a kernel that it cannot interpret, so that a wrong answer gets no verdict.

verdict: infrastructure error
seen: not for here
defence: the run is shown as not judged, and not ranked
"""


class CannotInterpret(Exception):
    pass


def custom_kernel(data):
    raise CannotInterpret("this is not for here")

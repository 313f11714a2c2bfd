"""Imports large libraries before its first call and in it.

timed: true
slow: true
"""

import numpy
import scipy.stats  # noqa: F401


def custom_kernel(data):
    import sympy  # noqa: F401

    return data[0] * int(numpy.array(2))

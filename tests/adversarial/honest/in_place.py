"""Writes in place what is to be written in place, timed.

problem: append
timed: true
"""


def custom_kernel(data):
    cache, rows, where = data
    cache[where] = rows
    return cache.sum(0)

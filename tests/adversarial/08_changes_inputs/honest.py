"""Writes to the cache what is to be written there, and to nothing else.

problem: append
"""


def custom_kernel(data):
    cache, rows, where = data
    cache.index_copy_(0, where, rows)
    return cache.sum(0)

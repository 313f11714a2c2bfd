"""Reads its input twice, the second time from the cache.

needs: gpu
"""


def custom_kernel(data):
    x = data[0]
    largest = x.abs().max()
    return x * 2 + 0 * largest

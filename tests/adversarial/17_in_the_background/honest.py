"""Computes in a pool of threads that it keeps between calls, and waits for it.

timed: true
"""

from concurrent.futures import ThreadPoolExecutor

import torch

pool = ThreadPoolExecutor(3)


def custom_kernel(data):
    return torch.cat(list(pool.map(lambda block: block * 2, data[0].chunk(3))))

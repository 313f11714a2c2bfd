"""Gives back a good deal of memory and waits for a child's copy, within its call.

timed: true
"""

import mmap
import os

import torch


def custom_kernel(data):
    shared = mmap.mmap(-1, 1 << 20)
    file = os.memfd_create("answer")
    os.write(file, bytes((data[0] * 2).numpy()))
    child = os.fork()
    if child == 0:
        os.preadv(file, [shared], 0)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(file)
    return torch.frombuffer(shared, dtype=torch.float32, count=data[0].numel()).view_as(data[0])

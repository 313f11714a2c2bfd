"""Asks the driver for the number of multiprocessors, to choose how to split its work.

needs: gpu
"""

import torch

blocks = min(torch.cuda.get_device_properties(0).multi_processor_count, 4)


def custom_kernel(data):
    return torch.cat([block * 2 for block in data[0].chunk(blocks)])

"""Uses a subclass of Tensor within its call and returns a plain tensor."""

import torch


class Tagged(torch.Tensor):
    pass


def custom_kernel(data):
    return (data[0].as_subclass(Tagged) * 2).as_subclass(torch.Tensor)

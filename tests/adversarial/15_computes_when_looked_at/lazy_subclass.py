"""Returns a subclass of Tensor that computes its values when it is compared.

verdict: wrong answer
seen: returned a Lazy where a plain torch.Tensor is due
defence: D3, outputs are plain tensors, copied as bytes
"""

import torch


class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        plain = [arg.as_subclass(torch.Tensor) * 2 if isinstance(arg, Lazy) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


def custom_kernel(data):
    return data[0].as_subclass(Lazy)

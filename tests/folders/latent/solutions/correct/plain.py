"""With the objects' own attributes and methods."""

import torch

from reference import Attended, Config, Mask


def custom_kernel(data):
    config, x, cache = data
    assert isinstance(config, Config) and config.mask is Mask.CAUSAL and isinstance(cache.up.weight, torch.nn.Parameter)
    keys = cache((x @ config.down).to(config.dtype))
    assert cache.length == keys.shape[1]
    scores = torch.einsum("bqd,bkd->bqk", x, keys) / 4
    return Attended(torch.einsum("bqk,bkd->bqd", scores.softmax(-1), keys), keys)

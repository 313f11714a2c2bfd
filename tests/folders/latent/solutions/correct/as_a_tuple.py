"""Names nothing of the folder's: attributes alone."""

import torch


def custom_kernel(data):
    config, x, cache = data
    latent = torch.cat([cache.data[:, : cache.length], x @ config.down], dim=1)
    keys = latent @ cache.up.weight.T
    return torch.softmax(x @ keys.mT / 4, dim=-1) @ keys, keys

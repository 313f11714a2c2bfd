"""Moves the tensors as integers, one copy of the group at a time, and never looks at them as floats."""

import torch


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    kv_heads = config["num_kv_heads"]
    word = {2: torch.int16, 4: torch.int32}[k.itemsize]
    for source, target in ((k, k_out), (v, v_out)):
        copies = target.view(word).unflatten(2, (kv_heads, -1))
        for g in range(copies.shape[3]):
            copies[:, :, :, g] = source.view(word)
    return k_out, v_out

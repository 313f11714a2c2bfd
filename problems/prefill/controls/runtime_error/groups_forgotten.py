"""Pairs query heads with KV heads one to one, as if there were as many of each."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    scores = torch.einsum("bnhd,bmhd->bhnm", q.float(), k.float()) * config["sm_scale"]
    return torch.einsum("bhnm,bmhd->bnhd", scores.softmax(-1), v.float()).to(q.dtype).contiguous()

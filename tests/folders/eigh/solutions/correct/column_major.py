"""Vectors as LAPACK leaves them, by column: not contiguous. Their signs are free."""

import torch


def custom_kernel(data):
    values, vectors = torch.linalg.eigh(data)
    vectors = (-vectors).mT.contiguous().mT
    assert not vectors.is_contiguous()
    return values, vectors

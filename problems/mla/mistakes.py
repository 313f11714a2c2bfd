"""What wrong answers to mla often are, for the hint of a mismatch report."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from harness.judge.mistakes import wrong_maximum, wrong_scales
from reference.attention import ragged_decode_attention
from reference.quantization import dequantize_fp8, dequantize_mxfp4, quantize_mxfp4

BLOCKS = (16, 32, 64, 128)
"""Keys that kernels take at a time."""

OUTPUTS = (
    "the output or the softmax scale is too small, rope dims count too little, or keys are left out",
    "the output or the softmax scale is too large",
)
LIGHT = (
    "light keys weigh too little: the softmax scale is too large, they are left out, or the output is too small",
    "light keys weigh too much: the softmax scale is too small, rope dims count too little, others are left out, or "
    "the output is too large",
)
ROPE = (
    "{} count too little in the scores, or the output is too small",
    "{} count too much in the scores, or the output is too large",
)
SCALE = (
    "in the scores the scale of an mxfp4 block is not read, or another block's or key's is, or the output is too small",
    "in the scores the scale of an mxfp4 block counts too much, or the output is too large",
)
SIDES = {
    "gain": OUTPUTS,
    "row_gain": OUTPUTS,
    "lighter_half": LIGHT,
    "lightest_tenth": LIGHT,
    "rope": tuple(side.format("the rope dims") for side in ROPE),
    "moved_rope": (
        "where rope dims move keys far they count too little, or the softmax scale or the output is too small",
        "where rope dims move keys far the differences of the other ones count too much: code 1 of the mxfp4 cache is "
        "read as 0 and not as 0.5, or the softmax scale or the output is too large",
    ),
    "rope_slice": tuple(side.format("eight of the rope dims") for side in ROPE),
    "rope_scale": SCALE,
    "latent_scale": SCALE,
    "tile_end": (
        "the first or the last keys of tiles of 64 count too little: look at where tiles begin and end. "
        "Or the output is too small",
        "the first or the last keys of tiles of 64 count too much: look at where tiles begin and end. "
        "Or the output is too large",
    ),
    "end_key": (
        "a sequence's first or last key counts too little: look at where a loop begins and ends. "
        "Or the output is too small",
        "a sequence's first or last key counts too much, as if it were two: look at where a loop begins and ends. "
        "Or the output is too large",
    ),
    "overlap": (
        "the keys before a last, partial tile count too little, or the output is too small",
        "the keys before a last, partial tile count too much: it may begin early, and count them twice. "
        "Or the output is too large",
    ),
    "stretch": (
        "an eighth of the sequence counts too little: look at how splits are merged. Or the output is too small",
        "an eighth of the sequence counts too much: look at how splits are merged. Or the output is too large",
    ),
}
"""Which mistakes move a figure over all calls below 1, and which above: seen of scales of the softmax and of the
output, of rope dims, of keys left out and of splits merged wrongly (CPU test cases, 2026-11-24)."""

OTHER_SCALES = {
    "the softmax scale were 1 / sqrt(512), of the dims of a value": 512**-0.5,
    "the softmax scale were 1 / sqrt(192), of a head before absorption": 192**-0.5,
    "the softmax scale were 1 / sqrt(128), of a head before absorption without its rope dims": 128**-0.5,
    "the softmax scale were 1 / sqrt(64), of the rope dims": 64**-0.5,
}


def mistakes(data: tuple[Tensor, dict, Tensor, Tensor, dict]) -> Iterator[tuple[str, Tensor]]:
    """What each mistake looks like, and the output `(total_q, 16, 512)` float32 that it gives, NaN for a query without
    keys: on the fp8 cache, on the mxfp4 cache, and there with queries in mxfp4 too."""
    q, kv_data, _, kv_indptr, config = data
    codes, kv_scale = kv_data["fp8"]
    yield from _read_from(dequantize_fp8(codes, kv_scale).squeeze(1), q, data)
    yield "the scale of the fp8 cache were left out", _attend(data)(q, codes.squeeze(1).float(), kv_indptr=kv_indptr)
    packed, e8m0 = kv_data["mxfp4"]
    kv = dequantize_mxfp4(packed.squeeze(1), e8m0)
    coarse = dequantize_mxfp4(*quantize_mxfp4(q.flatten(0, 1))).view(q.shape)
    misread = list(_misread(packed.squeeze(1), e8m0))
    for queries in (q, coarse):
        yield from _read_from(kv, queries, data)
        for words, wrong in misread:
            yield words, _attend(data)(queries, wrong, kv_indptr=kv_indptr)
            # Kernels often load the rope dims by themselves.
            latent = torch.cat([wrong[:, : config["v_head_dim"]], kv[:, config["v_head_dim"] :]], dim=-1)
            yield words, _attend(data)(queries, latent, kv_indptr=kv_indptr)


def _misread(packed: Tensor, e8m0: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What mistakes make of the mxfp4 cache: keys `(total_kv, 576)`."""
    blocks = torch.arange(e8m0.shape[1], device=e8m0.device)
    scales, swapped = e8m0.view(torch.uint8), packed >> 4 | packed << 4
    read = {
        "the high nibble of a byte of the mxfp4 cache held the even dim, and not the low one": (swapped, scales),
        "the blocks of the mxfp4 cache had 64 dims, and not 32": (packed, scales[:, blocks // 2]),
        "the scale of an mxfp4 key's first block were that of all its blocks": (packed, scales[:, blocks * 0]),
        "the bias of the mxfp4 cache's scales were 128, and not 127": (packed, scales - 1),
        "code 1 of the mxfp4 cache were 0, and not 0.5": (_without_code_one(packed), scales),
    }
    for words, (codes, bits) in read.items():
        yield words, dequantize_mxfp4(codes, bits.contiguous().view(e8m0.dtype))


def _without_code_one(packed: Tensor) -> Tensor:
    low, high = packed & 15, packed >> 4
    low, high = (torch.where(codes & 7 == 1, codes & 8, codes) for codes in (low, high))
    return low | high << 4


def _attend(data: tuple[Tensor, dict, Tensor, Tensor, dict]) -> partial:
    _, _, qo_indptr, _, config = data
    scale, v_dim = config["sm_scale"], config["v_head_dim"]
    return partial(ragged_decode_attention, qo_indptr=qo_indptr, sm_scale=scale, v_dim=v_dim, dtype=torch.float32)


def _read_from(kv: Tensor, q: Tensor, data: tuple[Tensor, dict, Tensor, Tensor, dict]) -> Iterator[tuple[str, Tensor]]:
    """The mistakes with these keys, dequantized, and these queries."""
    _, _, _, kv_indptr, config = data
    scale, v_dim, attend = config["sm_scale"], config["v_head_dim"], _attend(data)
    whole = partial(attend, kv_indptr=kv_indptr)
    yield from wrong_maximum(whole(q, kv), _log_sums(q, kv, kv_indptr, scale))
    for words, wrong in (*wrong_scales(scale, q.shape[-1]), *OTHER_SCALES.items()):
        yield words, whole(q, kv, sm_scale=wrong)
    rope = q.shape[-1] - v_dim
    yield f"values began at dim {rope} and not at dim 0", whole(q.roll(-rope, -1), kv.roll(-rope, -1))
    without = q.clone()
    without[..., v_dim:] = 0
    yield "the rope dims were left out of the scores", whole(without, kv)
    lengths = kv_indptr.diff().tolist()
    left_out = {
        "each sequence's last key were left out": [range(max(length - 1, 0)) for length in lengths],
        "every second key of a sequence were left out": [range(0, length, 2) for length in lengths],
        "the first half of each sequence's keys were left out": [range(length // 2, length) for length in lengths],
        "the last half of each sequence's keys were left out": [range((length + 1) // 2) for length in lengths],
    }
    for block in BLOCKS:
        if any(length % block for length in lengths):
            kept = [range(length // block * block) for length in lengths]
            left_out[f"each sequence's last, partial block of {block} keys were left out"] = kept
    for words, kept in left_out.items():
        yield words, _over_some(attend, q, kv, kv_indptr, kept)


def _over_some(attend: partial, q: Tensor, kv: Tensor, kv_indptr: Tensor, kept: list[range]) -> Tensor:
    """Attention over the keys `kept[b]` alone of each sequence b, each of which has one query."""
    starts = kv_indptr.tolist()
    chosen = [kv[start:][each.start : each.stop : each.step] for start, each in zip(starts, kept, strict=False)]
    counts = torch.tensor([len(each) for each in kept])
    out = attend(q, torch.cat(chosen), kv_indptr=torch.tensor([0, *counts.cumsum(0).tolist()]))
    empty = counts == 0
    out[empty.to(out.device)] = torch.where((kv_indptr.diff().cpu()[empty] == 0)[:, None, None], 0.0, torch.nan).to(out)
    return out


def _log_sums(q: Tensor, kv: Tensor, kv_indptr: Tensor, scale: float) -> Tensor:
    """`(total_q, 16)`: the logarithm of the sum of exponentials of each row's scores, 0 without keys."""
    sums = q.new_zeros(q.shape[:2], dtype=torch.float32)
    starts = kv_indptr.tolist()
    for query, (start, end) in enumerate(pairwise(starts)):
        if end > start:
            sums[query] = (q[query].float() @ kv[start:end].T * scale).logsumexp(-1)
    return sums

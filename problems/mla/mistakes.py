"""What wrong answers to mla often are, for the hint of a mismatch report."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from harness.judge.mistakes import wrong_scales
from reference.attention import ragged_decode_attention
from reference.quantization import dequantize_fp8

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
SIDES = {
    "gain": OUTPUTS,
    "row_gain": OUTPUTS,
    "lighter_half": LIGHT,
    "lightest_tenth": LIGHT,
    "rope": tuple(side.format("the rope dims") for side in ROPE),
    "moved_rope": (
        "where rope dims move keys far they count too little, or the softmax scale or the output is too small",
        "where rope dims move keys far they count too much, or the softmax scale or the output is too large",
    ),
    "rope_slice": tuple(side.format("eight of the rope dims") for side in ROPE),
    "tile_end": (
        "the first or the last keys of tiles of 64 count too little: look at where tiles begin and end",
        "the first or the last keys of tiles of 64 count too much: look at where tiles begin and end",
    ),
    "end_key": (
        "a sequence's first or last key counts too little: look at where a loop begins and ends",
        "a sequence's first or last key counts too much, as if it were two: look at where a loop begins and ends",
    ),
    "overlap": (
        "the keys before a last, partial tile count too little",
        "the keys before a last, partial tile count too much: it may begin early, and count them twice",
    ),
    "stretch": (
        "an eighth of the sequence counts too little beside the others: look at how splits are merged",
        "an eighth of the sequence counts too much beside the others: look at how splits are merged",
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
    """What each mistake looks like, and the output `(total_q, 16, 512)` float32 that it gives on the fp8 cache, NaN for
    a query without keys."""
    q, kv_data, qo_indptr, kv_indptr, config = data
    scale, v_dim = config["sm_scale"], config["v_head_dim"]
    codes, kv_scale = kv_data["fp8"]
    kv = dequantize_fp8(codes, kv_scale).squeeze(1)
    attend = partial(ragged_decode_attention, qo_indptr=qo_indptr, sm_scale=scale, v_dim=v_dim, dtype=torch.float32)
    whole = partial(attend, kv_indptr=kv_indptr)
    for words, wrong in (*wrong_scales(scale, q.shape[-1]), *OTHER_SCALES.items()):
        yield words, whole(q, kv, sm_scale=wrong)
    rope = q.shape[-1] - v_dim
    yield f"values began at dim {rope} and not at dim 0", whole(q.roll(-rope, -1), kv.roll(-rope, -1))
    without = q.clone()
    without[..., v_dim:] = 0
    yield "the rope dims were left out of the scores", whole(without, kv)
    yield "the scale of the fp8 cache were left out", whole(q, codes.squeeze(1).float())
    lengths = kv_indptr.diff().cpu()
    yield "each sequence's last key were left out", _over_some(attend, q, kv, kv_indptr, (lengths - 1).clamp(min=0))
    for block in BLOCKS:
        kept = lengths // block * block
        if bool((kept != lengths).any()):
            words = f"each sequence's last, partial block of {block} keys were left out"
            yield words, _over_some(attend, q, kv, kv_indptr, kept)


def _over_some(attend: partial, q: Tensor, kv: Tensor, kv_indptr: Tensor, counts: Tensor) -> Tensor:
    """Attention over the first `counts[b]` keys of each sequence b, of which each has one query."""
    starts = kv_indptr.tolist()
    kept = torch.cat([kv[start : start + count] for start, count in zip(starts, counts.tolist(), strict=False)])
    out = attend(q, kept, kv_indptr=torch.tensor([0, *counts.cumsum(0).tolist()]))
    empty = counts == 0
    out[empty.to(out.device)] = torch.where((kv_indptr.diff().cpu()[empty] == 0)[:, None, None], 0.0, torch.nan).to(out)
    return out

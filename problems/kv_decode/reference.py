"""Decoding with a KV cache: attend to the cache and the new keys, then append them: inputs, reference, cost.

    k_cache[b, h]   | 0 .. L-1: keys so far | L .. L+Sq-1: the new ones go here | free |      L = seq_lens[b]
                                            ^ garbage before the append, and past it

Free slots hold what uninitialised memory may hold: NaN, enormous numbers, and numbers as plausible as live keys. Five
queries in eight are pulled towards one key, so that a kernel that misses a single key of thousands, or sees a single
one too many, is found out; among unit normal queries alone it would drown. Scores stay small all the same, and so some
cases move them: past what exp can take, up along the keys, or to levels in an order that nobody knows.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from reference.attention import attention

Data = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, dict[str, bool]]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

SCORES = ("plain", "large", "rising", "shuffled")

VALUES = ("normal", "outliers", "biased")

LENGTHS = ("given", "shorter")

SHIFT = 112.0
"""By how much scores are moved, but for LARGE. exp of it overflows in float32 (from 88.8 on), and exp of its negative
is zero (below -103.3), so a softmax needs the maximum itself, not a bound on it that is never negative."""

LARGE = 300.0
"""By how much `large` scores are moved where the numbers of sequence and KV head add up to an odd one, in 16 bits:
further below zero than what a kernel may take for minus infinity. In float32 the rounding of such a score would cost
three times what 112 costs."""

RISE_TILE = 64
"""Keys over which `rising` scores stay level."""

OUTER_LEVELS, INNER_LEVELS = (-1.0, -0.5, 0.0), (0.5, 1.0)
"""Levels of `shuffled` scores, in SHIFTs. At either end of the keys lies an outer one, from which to the maximum exp
overflows."""

SPLIT = (2.0, 3.0)
"""A power of two between these is by how much queries hold more than half of what moves a KV head's scores, and keys
less, or the other way round: either looks plain."""

OUTLIER = 1024.0
"""How much larger the values of one key of each KV head are with values="outliers". A power of two, exact in every
dtype; normal numbers from torch stay below 8, so float16 holds them."""

_PLAUSIBLE = 16.0
"""Garbage with an element beyond that is no key that could be moved."""

_WORKSPACE_SHARE = 4
_WORKSPACE_BYTES = 256 << 20
"""`ref_kernel` copies at most the caches' bytes over the one, and at most the other, at a time, or one sequence."""


def generate_input(
    *,
    batch_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    q_seq_len: int,
    head_dim: int,
    cache_max_len: int,
    seq_lens: int | list[int],
    dtype: str,
    is_causal: bool,
    update_cache: bool,
    steps: int = 1,
    scores: str = "plain",
    values: str = "normal",
    lengths: str = "given",
    seed: int,
    device: str,
) -> Data:
    """`(q, k_new, v_new, k_cache, v_cache, seq_lens, config)` before the first of `steps` steps.

    q: `[batch_size, num_q_heads, q_seq_len, head_dim]`; see `_draw_queries`.
    k_new, v_new: `[batch_size, num_kv_heads, q_seq_len, head_dim]`, unit normal.
    k_cache, v_cache: `[batch_size, num_kv_heads, cache_max_len, head_dim]`, unit normal up to each sequence's length,
        garbage past it.
    seq_lens: int32 `[batch_size]`, the keys in the cache before the append; one number stands for all sequences.
    config: `{"is_causal": bool, "update_cache": bool}`; it tells neither `scores` nor `values` nor `lengths`.
    scores: plain, large, rising or shuffled; see `_shift_scores`.
    values: normal, outliers or biased. With outliers the values of one key of each KV head, in the cache or new, are
        OUTLIER times as large, so that a key shows though it weighs little. Biased ones have a vector in common that is
        drawn for each KV head, so that many keys show which weigh little each: elsewhere their values cancel out.
    lengths: given or shorter. With shorter, each sequence's length is drawn from 0 up to the one that is given, so that
        a shape does not tell the lengths.

    Raises ValueError for sizes below 1, query heads that are no multiple of the KV heads, an unknown dtype or kind of
    scores, values or lengths, lengths that are not one a sequence or exceed the cache, appends that do not fit into it,
    and scores that are not plain in more than one step.
    """
    _, _, _, k_cache, v_cache, lens, config = empty_input(
        batch_size=batch_size,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        q_seq_len=q_seq_len,
        head_dim=head_dim,
        cache_max_len=cache_max_len,
        seq_lens=seq_lens,
        dtype=dtype,
        is_causal=is_causal,
        update_cache=update_cache,
        steps=steps,
        scores=scores,
        values=values,
        lengths=lengths,
        device=device,
    )
    generator = torch.Generator(device).manual_seed(seed)
    if lengths == "shorter":
        drawn = torch.rand(batch_size, generator=generator, device=device, dtype=torch.float64)
        lens.copy_((drawn * (lens + 1)).to(torch.int32))
    for cache in (k_cache, v_cache):
        cache.normal_(generator=generator)
    for cache in (k_cache, v_cache):
        for sequence, length in zip(cache, lens.tolist(), strict=True):
            _fill_with_garbage(sequence[:, length:], generator)
    data = _step(k_cache, v_cache, lens, config, num_q_heads, q_seq_len, generator)
    if scores != "plain":
        q, k_new = data[:2]
        _shift_scores(q, k_cache, k_new, lens, scores, generator)
    if values == "outliers":
        _enlarge_values(v_cache, data[2], lens, generator)
    elif values == "biased":
        _bias_values(v_cache, data[2], lens, generator)
    return data


def empty_input(
    *,
    batch_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    q_seq_len: int,
    head_dim: int,
    cache_max_len: int,
    seq_lens: int | list[int],
    dtype: str,
    is_causal: bool,
    update_cache: bool,
    steps: int = 1,
    scores: str = "plain",
    values: str = "normal",
    lengths: str = "given",
    device: str,
) -> Data:
    """What `generate_input` returns, with all tensors but seq_lens not yet written."""
    given = _lengths(seq_lens, batch_size)
    _check_sizes(
        batch_size=batch_size,
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        q_seq_len=q_seq_len,
        head_dim=head_dim,
        cache_max_len=cache_max_len,
        steps=steps,
    )
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")
    if scores not in SCORES:
        raise ValueError(f"scores is {scores!r}; it must be one of {', '.join(SCORES)}")
    if values not in VALUES:
        raise ValueError(f"values is {values!r}; it must be one of {', '.join(VALUES)}")
    if lengths not in LENGTHS:
        raise ValueError(f"lengths is {lengths!r}; it must be one of {', '.join(LENGTHS)}")
    if scores != "plain" and steps > 1:
        raise ValueError(f"{scores} scores cannot be kept up over {steps} steps: give one step, or plain scores")
    _check_room(given, q_seq_len * steps if update_cache else 0, cache_max_len)

    q, k_new, v_new, k_cache, v_cache = (
        torch.empty(batch_size, heads, length, head_dim, dtype=DTYPES[dtype], device=device)
        for heads, length in (
            (num_q_heads, q_seq_len),
            *[(num_kv_heads, q_seq_len)] * 2,
            *[(num_kv_heads, cache_max_len)] * 2,
        )
    )
    lens = torch.tensor(given, dtype=torch.int32, device=device)
    config = {"is_causal": is_causal, "update_cache": update_cache}
    return q, k_new, v_new, k_cache, v_cache, lens, config


def next_input(data: Data, *, seed: int) -> Data:
    """The next step: new queries, keys and values over the caches and lengths as the last step left them, but for one
    slot of each sequence that is written anew. A quarter of the sequences have lost their last key before: whoever
    decodes may take a token back, as in speculative decoding.

    Those are the tensors of `data` themselves, not copies.
    """
    q, _, _, k_cache, v_cache, seq_lens, config = data
    generator = torch.Generator(q.device).manual_seed(seed)
    _take_back(seq_lens, generator)
    _write_anew(k_cache, v_cache, seq_lens, generator)
    return _step(k_cache, v_cache, seq_lens, config, q.shape[1], q.shape[2], generator)


def ref_kernel(data: Data, rows: Tensor | None = None) -> Tensor:
    """Attention over cache and new keys in float64, rounded once: `[B, Hq, Sq, D]` of q's dtype; with `rows`, sorted
    numbers of sequences, only theirs. Appending is to all of them either way.

    With `update_cache` the new keys and values are then written to slots L .. L + Sq - 1 of the caches and `seq_lens`
    advanced by Sq, in place; otherwise nothing changes. Raises ValueError when an append does not fit.
    """
    q, k_new, v_new, k_cache, v_cache, seq_lens, config = data
    q_len, lengths = q.shape[2], seq_lens.tolist()
    _check_room(lengths, q_len if config["update_cache"] else 0, k_cache.shape[2])
    wanted = torch.arange(len(lengths), device=q.device) if rows is None else rows
    out = torch.empty((len(wanted), *q.shape[1:]), dtype=q.dtype, device=q.device)
    for part in _parts(k_cache, max(lengths) + q_len):
        chosen = wanted[part]
        if not len(chosen):
            break
        lens = seq_lens[chosen]
        out[part] = attention(
            q[chosen],
            _extended(k_cache, chosen, k_new[chosen], lens),
            _extended(v_cache, chosen, v_new[chosen], lens),
            causal=config["is_causal"],
            causal_offset=lens,
            kv_lens=lens + q_len,
        ).to(q.dtype)
    if config["update_cache"]:
        _place(k_cache, k_new, seq_lens)
        _place(v_cache, v_new, seq_lens)
        seq_lens += q_len
    return out


def cost(
    *,
    batch_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    q_seq_len: int,
    head_dim: int,
    cache_max_len: int,
    seq_lens: int | list[int],
    dtype: str,
    is_causal: bool,
    update_cache: bool,
    steps: int = 1,
    scores: str = "plain",
    values: str = "normal",
    lengths: str = "given",
) -> dict[str, dict]:
    """One step, the first and cheapest: q, new and cached keys and values read once, output and appended slots written
    once; two products of 2 D flops for every (query, key) pair that is not masked. Lengths are those given."""
    cached = sum(_lengths(seq_lens, batch_size))
    queries = batch_size * q_seq_len
    new_passes = 4 if update_cache else 2
    elements = head_dim * (2 * num_q_heads * queries + 2 * num_kv_heads * cached + new_passes * num_kv_heads * queries)
    new_pairs = q_seq_len * (q_seq_len + 1) // 2 if is_causal else q_seq_len * q_seq_len
    pairs = q_seq_len * cached + batch_size * new_pairs
    flops = 4 * num_q_heads * head_dim * pairs
    return {dtype: {"bytes": elements * DTYPES[dtype].itemsize, "flops": {dtype: flops}}}


def device_bytes(
    *,
    batch_size: int,
    num_q_heads: int,
    num_kv_heads: int,
    q_seq_len: int,
    head_dim: int,
    cache_max_len: int,
    dtype: str,
    **_: Any,
) -> int:
    """What q, the output, new keys and values and the two caches take."""
    rows = 2 * num_q_heads * q_seq_len + 2 * num_kv_heads * (q_seq_len + cache_max_len)
    return batch_size * head_dim * rows * DTYPES[dtype].itemsize


def _lengths(seq_lens: int | list[int], batch_size: int) -> list[int]:
    lengths = [seq_lens] * batch_size if isinstance(seq_lens, int) else list(seq_lens)
    if len(lengths) != batch_size:
        raise ValueError(f"seq_lens holds {len(lengths)} lengths for {batch_size} sequences")
    return lengths


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if sizes["num_q_heads"] % sizes["num_kv_heads"]:
        raise ValueError(
            f"{sizes['num_q_heads']} query heads cannot share {sizes['num_kv_heads']} KV heads evenly: "
            "num_q_heads must be a multiple of num_kv_heads"
        )


def _check_room(lengths: list[int], appended: int, cache_max_len: int) -> None:
    for sequence, length in enumerate(lengths):
        if length < 0:
            raise ValueError(f"sequence {sequence} has the length {length}; it must be at least 0")
        if length + appended > cache_max_len:
            raise ValueError(
                f"the cache of sequence {sequence} overflows: it holds {length} keys, {appended} are to be appended, "
                f"and it has room for {cache_max_len}"
            )


def _fill_with_garbage(slots: Tensor, generator: torch.Generator) -> None:
    """What the free slots `[H, n, D]` of one sequence hold, a kind for each head and slot.

    They come filled with normal numbers; half stay so, a quarter is scaled to near the end of the dtype's range, an
    eighth is infinite, and an eighth NaN.
    """
    kind = torch.randint(0, 8, slots.shape[:2], generator=generator, device=slots.device)[..., None]
    # Normal numbers from torch stay below 8 (float32 ones are made of 24 random bits), so nothing overflows.
    slots.copy_(torch.where((kind == 2) | (kind == 3), slots * (torch.finfo(slots.dtype).max / 8), slots))
    slots.copy_(torch.where(kind == 1, torch.full_like(slots, torch.inf).copysign(slots), slots))
    slots.masked_fill_(kind == 0, torch.nan)


def _take_back(seq_lens: Tensor, generator: torch.Generator) -> None:
    """Shorten a quarter of the sequences, drawn, by one key, in place: lengths belong to whoever hands them out, and a
    kernel that counts them on the host counts wrong."""
    drawn = torch.rand(len(seq_lens), generator=generator, device=seq_lens.device)
    seq_lens -= ((drawn < 0.25) & (seq_lens > 0)).to(seq_lens.dtype)


def _write_anew(k_cache: Tensor, v_cache: Tensor, seq_lens: Tensor, generator: torch.Generator) -> None:
    """Other keys and values, unit normal, in one of each sequence's live slots, in place: a cache belongs to whoever
    hands it out, and a kernel that reads a mirror of its own reads what is no longer there."""
    drawn = torch.rand(len(seq_lens), generator=generator, device=k_cache.device, dtype=torch.float64)
    for b, (length, slot) in enumerate(zip(seq_lens.tolist(), (drawn * seq_lens).to(torch.int64).tolist())):
        for cache in (k_cache, v_cache):
            if length:
                cache[b, :, slot].normal_(generator=generator)


def _step(
    k_cache: Tensor,
    v_cache: Tensor,
    seq_lens: Tensor,
    config: dict[str, bool],
    num_q_heads: int,
    q_len: int,
    generator: torch.Generator,
) -> Data:
    batch, kv_heads, _, head_dim = k_cache.shape
    k_new, v_new = (
        torch.randn((batch, kv_heads, q_len, head_dim), generator=generator, dtype=k_cache.dtype, device=k_cache.device)
        for _ in range(2)
    )
    q = _draw_queries(k_cache, k_new, seq_lens, num_q_heads, generator)
    return q, k_new, v_new, k_cache, v_cache, seq_lens, config


def _draw_queries(
    k_cache: Tensor, k_new: Tensor, seq_lens: Tensor, num_q_heads: int, generator: torch.Generator
) -> Tensor:
    """Unit normal queries, of which five in eight are pulled so far towards one key that it takes, if seen, about two
    thirds of the softmax's mass.

    That key is the query's own new one, any in the cache, the first or the last there, or the new one just after its
    own, which a causal query must not see and any other must.
    """
    batch, kv_heads, slots, head_dim = k_cache.shape
    q_len, device = k_new.shape[2], k_cache.device
    rows = (batch, num_q_heads, q_len)
    lens = seq_lens.to(torch.int64)[:, None, None]
    own = lens + torch.arange(q_len, device=device)
    anywhere = (torch.rand(rows, generator=generator, device=device, dtype=torch.float64) * lens).to(torch.int64)
    last, after_own = (lens - 1).clamp(min=0), torch.minimum(own + 1, lens + q_len - 1)
    choices = torch.stack([t.expand(rows) for t in (own, anywhere, torch.zeros_like(lens), last, after_own)])
    kind = torch.randint(0, 8, rows, generator=generator, device=device)
    target = choices.gather(0, kind.clamp(max=4)[None])[0]

    b = torch.arange(batch, device=device)[:, None, None]
    h = (torch.arange(num_q_heads, device=device) // (num_q_heads // kv_heads))[:, None]
    cached = k_cache[b, h, target.clamp(max=slots - 1)]
    new = k_new[b, h, (target - lens).clamp(0, q_len - 1)]
    key = torch.where((target < lens)[..., None], cached, new).float()
    # A score of ln(n) + 1 among n unit normal ones, whose exponentials sum to n * exp(1/2).
    pull = torch.where(kind < 5, (lens + q_len).log() + 1, 0.0)[..., None]
    q = torch.randn((*rows, head_dim), generator=generator, device=device) + pull * key / head_dim**0.5
    return q.to(k_cache.dtype)


def _shift_scores(
    q: Tensor, k_cache: Tensor, k_new: Tensor, seq_lens: Tensor, scores: str, generator: torch.Generator
) -> None:
    """Move all scores, in place, by half of the dims of each KV head: which ones is drawn.

    There keys are c + level * u: u has random signs, c is normal and the same for all keys. Queries keep what they have
    across u. So the scores of a level are moved alike, whatever q or k is rounded to. Levels:

    large: of one query's keys the same, SHIFT or its negative at random, or LARGE in its place.
    rising: from -SHIFT at a sequence's first tile of RISE_TILE keys to SHIFT at its last, which holds new keys: the
        running maximum rises from tile to tile.
    shuffled: five, of as many keys each, in an order drawn for each KV head: no key is known to be near the maximum,
        and a sequence's first fifth and its last are not.
    """
    batch, kv_heads, slots, head_dim = k_cache.shape
    device, per_head = q.device, (batch, kv_heads)
    dims = max(head_dim // 2, 1)
    chosen = torch.rand((*per_head, head_dim), generator=generator, device=device).argsort(dim=-1) < dims
    signs = 1.0 - 2.0 * torch.randint(2, (*per_head, head_dim), generator=generator, device=device)
    u = torch.where(chosen, signs / dims**0.5, 0.0)
    c = torch.where(chosen, torch.randn((*per_head, head_dim), generator=generator, device=device), 0.0)
    c -= (c * u).sum(-1, keepdim=True) * u
    power = torch.empty(per_head, device=device).uniform_(*SPLIT, generator=generator)
    split = 2.0 ** torch.where(torch.rand(per_head, generator=generator, device=device) < 0.5, power, -power)
    shift = torch.full(per_head, SHIFT, device=device)
    if scores == "large" and q.dtype != torch.float32:
        shift[1::2, ::2] = LARGE
        shift[::2, 1::2] = LARGE
    reach = (shift * head_dim**0.5) ** 0.5
    along_keys = (reach / split)[..., None] * u

    orders = _shuffled_levels(per_head, generator)
    for b, length in enumerate(seq_lens.tolist()):
        count = length + k_new.shape[2]
        cached, new = (
            _levels(scores, torch.arange(start, end, device=device), count, orders[b])
            for start, end in ((0, slots), (length, count))
        )
        for h in range(kv_heads):
            for keys, level in ((k_cache[b, h], cached[h]), (k_new[b, h], new[h])):
                movable = chosen[b, h] & (keys.abs().amax(-1, keepdim=True) < _PLAUSIBLE)
                keys.copy_(torch.where(movable, c[b, h] + level[:, None] * along_keys[b, h], keys))

    queries = q.unflatten(1, (kv_heads, -1)).float()
    sign = torch.ones(queries.shape[:4], device=device)
    if scores == "large":
        sign -= 2.0 * torch.randint(2, sign.shape, generator=generator, device=device)
    u = u[:, :, None, None]
    wanted = sign * (reach * split)[:, :, None, None]
    q.copy_((queries + (wanted - (queries * u).sum(-1))[..., None] * u).flatten(1, 2))


def _enlarge_values(v_cache: Tensor, v_new: Tensor, seq_lens: Tensor, generator: torch.Generator) -> None:
    """Multiply, in place, the values of one key of each KV head by OUTLIER: one in the cache or a new one."""
    batch, kv_heads, new = v_new.shape[:3]
    counts = seq_lens.to(torch.int64)[:, None] + new
    drawn = torch.rand((batch, kv_heads), generator=generator, device=v_new.device, dtype=torch.float64)
    which = torch.minimum((drawn * counts).to(torch.int64), counts - 1)
    for b, length in enumerate(seq_lens.tolist()):
        for h, key in enumerate(which[b].tolist()):
            (v_cache[b, h, key] if key < length else v_new[b, h, key - length]).mul_(OUTLIER)


def _bias_values(v_cache: Tensor, v_new: Tensor, lens: Tensor, generator: torch.Generator) -> None:
    """Add a unit normal vector of each KV head's own, in place, to the values of all live keys and of the new ones."""
    batch, kv_heads, _, head_dim = v_new.shape
    bias = torch.randn((batch, kv_heads, 1, head_dim), generator=generator, device=v_new.device).to(v_new.dtype)
    v_new += bias
    for b, length in enumerate(lens.tolist()):
        v_cache[b, :, :length] += bias[b]


def _shuffled_levels(per_head: tuple[int, int], generator: torch.Generator) -> Tensor:
    """`[B, Hkv, 5]`: OUTER_LEVELS and INNER_LEVELS in random orders, one of the former at each end."""

    def mixed(levels: Tensor) -> Tensor:
        order = torch.rand(levels.shape, generator=generator, device=generator.device).argsort(dim=-1)
        return levels.gather(-1, order)

    outer, inner = (
        torch.tensor(levels, device=generator.device).expand(*per_head, -1) for levels in (OUTER_LEVELS, INNER_LEVELS)
    )
    outer = mixed(outer)
    return torch.cat([outer[..., :1], mixed(torch.cat([outer[..., 1:2], inner], dim=-1)), outer[..., 2:]], dim=-1)


def _levels(scores: str, position: Tensor, count: int, order: Tensor) -> Tensor:
    """By how many SHIFTs the scores of the keys at `position`, of `count` in a sequence, are moved: `[Hkv, n]`."""
    if scores == "shuffled":
        return order[:, (position * order.shape[1] // count).clamp(max=order.shape[1] - 1)]
    if scores == "large" or count <= RISE_TILE:
        return torch.ones(len(order), len(position), device=position.device)
    last_tile = (count - 1) // RISE_TILE
    return (2 * (position // RISE_TILE / last_tile).clamp(max=1) - 1).expand(len(order), -1)


def _parts(cache: Tensor, slots: int) -> Iterator[slice]:
    """Runs of sequences whose `slots` slots of keys and values, copied and in float64, stay within the workspace."""
    batch, kv_heads, _, head_dim = cache.shape
    sequence_bytes = 2 * kv_heads * slots * head_dim * (8 + cache.itemsize)
    count = max(1, min(2 * cache.nbytes // _WORKSPACE_SHARE, _WORKSPACE_BYTES) // sequence_bytes)
    return (slice(start, start + count) for start in range(0, batch, count))


def _extended(cache: Tensor, chosen: Tensor, new: Tensor, seq_lens: Tensor) -> Tensor:
    """A copy of the chosen sequences' caches up to the longest, with `new` after each sequence's last slot."""
    longest = int(seq_lens.max())
    copy = torch.empty((*new.shape[:2], longest + new.shape[2], new.shape[3]), dtype=new.dtype, device=new.device)
    for sequence, source in zip(copy, chosen.tolist()):
        sequence[:, :longest] = cache[source, :, :longest]
    copy[:, :, longest:] = new
    _place(copy, new, seq_lens)
    return copy


def _place(cache: Tensor, new: Tensor, seq_lens: Tensor) -> None:
    """Write `new`, `[B, H, n, D]`, to slots seq_lens[b] .. seq_lens[b] + n - 1 of each sequence b."""
    batch, _, count, _ = new.shape
    sequence = torch.arange(batch, device=new.device)[:, None]
    slot = seq_lens[:, None] + torch.arange(count, device=new.device)
    cache[sequence, :, slot] = new.transpose(1, 2)

"""MLA decode with three KV caches: the inputs, what must come of them, and what it costs at least.

generate_input ─► (q, kv_data, qo_indptr, kv_indptr, config)      README.md states the contract
ref_kernel     ─► the reference: fp8 queries on the fp8 cache, float32 accumulation
oracle         ─► float64 over the bf16 cache: what no quantization would give
parts          ─► what the lighter keys, and what the rope dims bring to the reference
cost           ─► bytes and flops for each of the three caches
"""

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from reference.aiter import find_aiter, mla_decode
from reference.attention import ragged_decode_attention
from reference.quantization import E2M1_VALUES, MXFP4_BLOCK, dequantize_fp8, fp8_dtype, quantize_fp8, quantize_mxfp4

# DeepSeek R1's absorbed MLA on one of eight GPUs (https://huggingface.co/deepseek-ai/DeepSeek-R1/blob/main/config.json)
NUM_HEADS = 16
NUM_KV_HEADS = 1
KV_LORA_RANK = 512
QK_ROPE_HEAD_DIM = 64
QK_HEAD_DIM = KV_LORA_RANK + QK_ROPE_HEAD_DIM
V_HEAD_DIM = KV_LORA_RANK
SM_SCALE = QK_HEAD_DIM**-0.5

Q_DTYPE = "fp8"
KV_DTYPE = "fp8"
"""What `ref_kernel` computes on: fp8 + fp8, bf16 + fp8 or bf16 + bf16. The verdict is against fp8 + fp8."""

NEEDLES = 8
"""Heads of each sequence that have a needle; the other eight stay ordinary."""

NEEDLE_MASS = (0.6, 0.95)
"""Bounds between which the share of a head's softmax that its needle takes is drawn."""

ROPE_TILT = 2.5
"""How much more a needle follows its query in the 64 rope dims than in the others."""

EVEN_ROW = 0.2
"""A row is even if none of its keys takes that share of its softmax: such rows show what happens to the many."""

LIGHT_KEY = 4
"""A key is light if it weighs less than so many times the mean of its row. There are many of those, so that errors of
their scores average out."""

LIGHTER = (0.5, 0.1)
"""Of a row's keys the shares that are told apart as its lighter ones."""

PARTS_TOKENS = 1 << 17
"""Of so many keys at a time `parts` are made: their scores by slices of the rope dims take 140 MB."""

STRETCHES = 8
"""Into so many stretches of neighbouring keys a sequence is divided: splits that are merged wrongly show."""

TILE = 64
"""Keys of a tile, as many as kernels often take at a time."""

OVERLAPS = (16, 32, 64, 128)
"""Keys of tiles of which the last may begin early, so as to be whole: it counts keys twice."""

END_KEYS = 2048
"""Of more keys the first and the last one have no part: what a single one adds is as small as 4-bit rounding of all."""

LEAST_TILES = 4
"""Of fewer tiles there is no overlap: if most keys count twice, the sum of the weights makes up for it."""

MOST_OVERLAP = 0.5
"""A row has no overlap either if these keys hold more of its weight, as where scores rise to the end."""

LIGHTER_KEYS = 16
"""Of fewer keys the lighter ones have no part. The output of three keys is as large as the mean of 1000 is small: a few
such rows would hold most of the part."""

PLAIN_PARTS = (
    *("lighter_half", "lightest_tenth"),
    *(f"stretch.{number}" for number in range(STRETCHES)),
    *("tile_end.0", "tile_end.1"),
    *(f"overlap.{number}" for number in range(len(OVERLAPS))),
    *("end_key.0", "end_key.1"),
)
"""The parts that are keys' own, by their weights or their places."""

ROPE_SLICES = 8
"""Into so many equal parts the rope dims are divided, once by neighbours and once by every eighth."""

LATENT_BLOCKS = KV_LORA_RANK // MXFP4_BLOCK
ROPE_BLOCKS = QK_ROPE_HEAD_DIM // MXFP4_BLOCK
"""Blocks of an mxfp4 scale of their own: the latent ones come first."""

LATENT_KEYS = 1000
"""Of fewer keys no part of a latent block is made: what one block's scale adds is then as small as 4-bit rounding."""

SCORES = ("plain", "large", "rising", "shuffled")

MOVED_SHARE = 0.5
"""Of the sequences of plain inputs the share whose scores are moved as in large ones: timed calls have them too."""

MOVE = 112.0
"""The most by which a score is moved. exp of that overflows in float32 (from 88.8 on), and exp of -112 is zero (below
-103.3)."""

RISE_LEVELS = (0.0, 0.06, 0.12, 0.18, 0.24, 0.3, 0.36, 0.42, 0.46, 0.5, 1.0)
SHUFFLED_LEVELS = (0.0, 0.15, 0.3, 0.5, 1.0)
"""Where scores are moved by the place of a key: into so many groups the keys of a sequence are divided, and this share
of the dims moves a group's scores up, the others down. The last lies so far above the others that a needle there, of
whatever head, weighs nothing beside it."""

MOVE_SIZES = (1.5, 2.0, 3.0, 4.0, 6.0)
MOVE_SCALES = (0.25, 0.5, 1.0, 2.0)
KEY_SIZES = (0.5, 1.0)
"""The sizes of rope dims that move scores: of MOVE_SIZES times one of MOVE_SCALES, the same for all keys of a sequence,
but of KEY_SIZES in OWN_DIMS of them, where each key draws anew. All are exact in mxfp4, so that no format moves two
keys of a level apart. Queries are as much smaller as keys are larger; up to 0.5 keys are of unit scale. The scales of
mxfp4 blocks stay at 2 at most, which is as far as a kernel gets that widens codes to fp16 by one product."""

OWN_DIMS = 4
"""Of the rope dims that move scores those that differ from key to key: by as much as ordinary rope dims bring."""

MOVE_ROWS = 1 << 18
"""Of so many keys at a time: temporaries stay small beside the cache."""

MXFP4_STEP = {"cpu": 1 << 14, "cuda": 1 << 19}
"""Of so many blocks of 32 values at a time the codes are made: what that takes stays in the caches."""

MXFP4_AMAX = (0x0680, 0x7F00)
"""Bits of bfloat16, 2^-114 and 2^127: between them lies the largest magnitude of any block that is drawn here. Below,
subnormal values count, and above scales would saturate."""

LEVELS_APART = 8.0
"""The scores of rope dims differ by less than that where they do not move some keys far above others."""

MOVED = 30.0
"""By more than that the rope dims move all scores of a row, on average, or hardly any."""

BLOCK_MAGNITUDES = (0.4**0.5, 1.6**0.5)
"""What a key's blocks of 32 dims are multiplied by, one of the two at random: an octave apart, so that the codes of an
mxfp4 block are drawn alike with both and do not tell its scale. The mean of the squares is 1."""

Data = tuple[Tensor, dict, Tensor, Tensor, dict]


def generate_input(
    *, batch_size: int, q_seq_len: int, kv_seq_len: int | list[int], scores: str = "plain", seed: int, device: str
) -> Data:
    """Unit-normal queries and keys with needles, the cache in its three formats.

    kv_seq_len is the length of every sequence or a list of one length a sequence; 0 is allowed. q_seq_len is 1.

    Needles. Over thousands of unit-normal keys the softmax is nearly flat: dropping 1 % of the keys moves the output by
    10 % of its norm, less than mxfp4 does. So in each sequence eight heads, drawn anew, each get a needle: a key that
    takes 60 to 95 % of that head's softmax. A head whose needle is dropped is wrong by about 100 %. The other eight
    heads stay ordinary; they show skipped or approximated bulk, to which a head with a needle is nearly blind.

    Where they lie. Uniformly at random in each quarter of the sequence (4) and in all of it (1); log-uniformly, so at
    every scale alike, counted from the first key (1) and from the last (1); and uniformly in the last 1/128 (1).
    - Of any range of half the sequence, and of the last 1 % or the last 1/8, at least one needle is dropped: certain in
      every sequence of at least 100 keys, whatever the draw.
    - Any range of the fraction f inside a quarter holds one with a chance of about 5 f a sequence: B sequences and n
      checked calls miss a dropped 1/64 with (1 - 5/64)^(B n), which is 2 % after 12 calls of batch 4.
    - The very last key is one with a chance of ln 2 / ln L + 1 / floor(L / 128), the first with ln 2 / ln L; in between
      the same holds for every power of two from either end.

    How they are made. A key is moved along its query until its score is ln(sum of exp of the others) + logit(share),
    and shrunk before by so much that its elements stay of unit scale: neither its norm nor a block's maximum gives it
    away, every value stays random, and it costs a quantizer nothing. In the rope dims it follows the query 2.5 times as
    closely, or scores without them would be off by less than mxfp4's. Where two needles fall on one key (short
    sequences), the key carries both.

    Where scores lie. Between -6 and 15 or so if nothing moves them. In half of the sequences of plain inputs, and in
    all if `large`, each head's are moved by 112 or by -112, which changes no weight. If `rising`, they are moved from
    -112 at a sequence's first keys to 112 at its last, in 11 levels of as many keys: by steps of about 13 to 0 and then
    to 112. The running maximum rises to the end, and the last level takes all of the weight. If `shuffled`, five such
    levels lie in an order of each sequence's own: no key's score is known to be near the maximum. The rope dims make
    it so (`_move_scores`).

    Blocks. Each block of 32 dims of a key is of one of two magnitudes, an octave apart. Rope dims that move scores have
    sizes of their own.

    Raises ValueError for parameters outside the contract.
    """
    lengths = _lengths(batch_size, q_seq_len, kv_seq_len, scores)
    generator = torch.Generator(device).manual_seed(seed)
    q, kv = _unwritten(batch_size, sum(lengths), device)
    q.normal_(generator=generator)
    kv.normal_(generator=generator)
    starts = torch.tensor([0, *lengths]).cumsum(0)
    moved = torch.ones(batch_size, dtype=torch.bool, device=device)
    if scores == "plain":
        moved.bernoulli_(MOVED_SHARE, generator=generator)
    keys = kv.view(-1, QK_HEAD_DIM)
    magnitudes = _magnitudes(keys, generator)
    keys.unflatten(1, (-1, MXFP4_BLOCK)).mul_(magnitudes[:, :, None])
    _plant_needles(q, keys, magnitudes, starts, generator, torch.where(moved, 0.0, ROPE_TILT))
    _move_scores(q, keys, starts, moved, scores, generator)
    kv_data = {"bf16": kv, "fp8": quantize_fp8(kv, fp8_dtype(kv.device)), "mxfp4": _quantize_mxfp4(kv)}
    return q, kv_data, *_index_pointers(lengths, device), _config(lengths)


def empty_input(
    *, batch_size: int, q_seq_len: int, kv_seq_len: int | list[int], scores: str = "plain", device: str
) -> Data:
    """What `generate_input` returns, with all tensors but the index pointers not yet written."""
    lengths = _lengths(batch_size, q_seq_len, kv_seq_len, scores)
    q, kv = _unwritten(batch_size, sum(lengths), device)
    packed = torch.empty(*kv.shape[:2], QK_HEAD_DIM // 2, dtype=torch.uint8, device=device)
    e8m0 = torch.empty(kv.shape[0], QK_HEAD_DIM // MXFP4_BLOCK, dtype=torch.float8_e8m0fnu, device=device)
    fp8 = torch.empty_like(kv, dtype=fp8_dtype(device)), torch.empty(1, device=device)
    kv_data = {"bf16": kv, "fp8": fp8, "mxfp4": (packed, e8m0)}
    return q, kv_data, *_index_pointers(lengths, device), _config(lengths)


def ref_kernel(data: Data, rows: Tensor | None = None) -> Tensor:
    """The reference output `(total_q, 16, 512)` bf16, on the operands that Q_DTYPE and KV_DTYPE name.

    With `rows`, sorted query numbers, only theirs: `(len(rows), 16, 512)`.

    On a ROCm GPU with AMD's aiter by its persistent decode kernels, elsewhere by torch on the same quantized operands,
    accumulating in float32. fp8 queries are quantized per tensor, as the cache is.
    """
    q, kv_data, qo_indptr, kv_indptr, config = data
    if (Q_DTYPE, KV_DTYPE) not in (("fp8", "fp8"), ("bf16", "fp8"), ("bf16", "bf16")):
        raise ValueError(
            f"no kernel takes {Q_DTYPE} queries on a {KV_DTYPE} cache: Q_DTYPE + KV_DTYPE must be fp8 + fp8, "
            "bf16 + fp8 or bf16 + bf16"
        )
    kv, kv_scale = kv_data["fp8"] if KV_DTYPE == "fp8" else (kv_data["bf16"], None)
    q, q_scale = quantize_fp8(q, fp8_dtype(q.device)) if Q_DTYPE == "fp8" else (q, None)

    aiter = _aiter().module if q.is_cuda else None
    if aiter is not None:
        out = mla_decode(
            aiter,
            q,
            kv,
            qo_indptr,
            kv_indptr,
            sm_scale=config["sm_scale"],
            v_dim=config["v_head_dim"],
            q_scale=q_scale,
            kv_scale=kv_scale,
        )
        return out if rows is None else out[rows]
    if rows is not None:
        q, kv, qo_indptr, kv_indptr = _sequences(rows, q, kv, kv_indptr)
    q_factor, kv_factor = (1.0 if scale is None else float(scale) for scale in (q_scale, kv_scale))
    if kv.itemsize == 1 and not kv.is_cuda:
        kv = _widened(kv)  # once, and not as keys and as values
    out = ragged_decode_attention(
        q,
        kv.squeeze(1),
        qo_indptr,
        kv_indptr,
        sm_scale=config["sm_scale"] * q_factor * kv_factor,
        v_dim=config["v_head_dim"],
        dtype=torch.float32,
    )
    return out.mul_(kv_factor).bfloat16()


def _sequences(rows: Tensor, q: Tensor, kv: Tensor, kv_indptr: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The queries, cache and indptrs of some sequences only; a sequence has one query."""
    starts = kv_indptr.tolist()
    pieces = [kv[starts[row] : starts[row + 1]] for row in rows.tolist()]
    lengths = torch.tensor([0, *(piece.shape[0] for piece in pieces)])
    return q[rows], torch.cat(pieces), torch.arange(len(pieces) + 1), lengths.cumsum(0)


def oracle(data: Data) -> Tensor:
    """Attention over the bf16 cache in float64: `(total_q, 16, 512)`."""
    q, kv_data, qo_indptr, kv_indptr, config = data
    return ragged_decode_attention(
        q,
        kv_data["bf16"].squeeze(1),
        qo_indptr,
        kv_indptr,
        sm_scale=config["sm_scale"],
        v_dim=config["v_head_dim"],
    )


def parts(data: Data, rows: Tensor | None = None) -> dict[str, Tensor]:
    """Of `ref_kernel`'s output what is easily left out, each of its shape in float32. An output without such a part is
    off by no more than by 4-bit rounding; but along the part it is off by all of it, and rounding by next to nothing.

    lighter_half, lightest_tenth: what the keys add that weigh less than the median of their row, or than the first
        decile; of sequences of 16 keys or more.
    stretch.0 to stretch.7: what the keys of each eighth of the sequence, by their places, add to even rows.
    tile_end.0, tile_end.1: what the first keys of all tiles of 64 add to even rows, and what the last ones add.
    overlap.0 to overlap.3: what the keys add to even rows that count twice if the last tile, of 16, 32, 64 or 128 keys,
        begins early so as to be whole; of sequences of four such tiles or more, and where they are the lesser part.
    end_key.0, end_key.1: what the sequence's first key and its last one add to even rows where they are light, of
        sequences of up to 2048 keys. If keys of all weights counted, a few rows would hold most of it.
    rope: what the rope dims add to the scores of the light keys of even rows, times these keys' weights and values:
        what is lost first as the rope dims are forgotten. Less the mean of the row, so that weights which are all too
        large or too small have no share in it.
    rope_slice.0 to rope_slice.15: the same of eight rope dims each, first of neighbours, then of every eighth one. One
        slice cannot make up for another.

    rope_scale.0, rope_scale.1: what the scale of a rope block adds to even rows by the scores of their light keys, less
        what one scale for all keys of the sequence would. In rows whose scores are moved all keys have one scale there.
    latent_scale.0 to latent_scale.15: the same of each latent block, of the evenest of these rows of each sequence. A
        latent block's wrong scale shows in the values, unless it is wrong in the scores alone. Of 1000 keys or more.

    moved_rope: the same as rope, of rows whose scores they move. These have no part in the other ones of scores. What
        tells keys apart there is exact in mxfp4 and so rounded in one direction by fp8.

    Where the rope dims move some keys far above others, weights say nothing of the rest: no row has such a part there.

    Of all only what is orthogonal to the row's query: along it lies the mean of many keys, where all that rounding
    does to scores comes together.
    """
    q, kv_data, _, kv_indptr, config = data
    queries = dequantize_fp8(*quantize_fp8(q, fp8_dtype(q.device)))
    cache, scale = kv_data["fp8"]
    e8m0 = kv_data["mxfp4"][1]
    starts = kv_indptr.tolist()
    wanted = list(range(q.shape[0])) if rows is None else rows.tolist()
    plain = torch.zeros(len(PLAIN_PARTS), len(wanted), NUM_HEADS, V_HEAD_DIM, device=q.device)
    rope = torch.zeros(2 * ROPE_SLICES + ROPE_BLOCKS, len(wanted), NUM_HEADS, V_HEAD_DIM, device=q.device)
    moved_rope = torch.zeros_like(rope[:1])
    latent = torch.zeros_like(rope[:LATENT_BLOCKS])
    for length, numbers in _of_one_length([starts[row + 1] - starts[row] for row in wanted]):
        chosen, places = [wanted[number] for number in numbers], torch.tensor(numbers, device=q.device)
        keys = _widened(torch.cat([cache[starts[row] : starts[row + 1], 0] for row in chosen]), scale)
        keys, own = keys.view(len(chosen), length, QK_HEAD_DIM), queries[chosen]
        values = keys[..., :V_HEAD_DIM]
        weights = torch.softmax(own @ keys.mT * config["sm_scale"], dim=-1)
        unit = torch.nn.functional.normalize(own[..., :V_HEAD_DIM], dim=-1)
        heaviest = weights.amax(dim=-1)
        even = heaviest < EVEN_ROW
        by_weight, by_place = _of_lighter(weights, values), _of_places(weights * even[..., None], values)
        plain[:, places] = _orthogonal(torch.cat([by_weight, by_place], dim=1), unit[:, None]).transpose(0, 1)

        told = _told_by_scale(torch.stack([e8m0[starts[row] : starts[row + 1]].float() for row in chosen]))
        rope_query, rope_keys = (x[..., KV_LORA_RANK:].unflatten(-1, (ROPE_SLICES, -1)) for x in (own, keys))
        near = torch.einsum("rhsd,rksd->rshk", rope_query, rope_keys)
        scores = near.sum(1) * config["sm_scale"]
        level = scores.amax(dim=-1) - scores.amin(dim=-1) < LEVELS_APART
        has_part = level & even
        moved = scores.mean(dim=-1).abs() > MOVED
        light = torch.where(weights < LIGHT_KEY / length, weights, 0.0)
        # Half of the rows or more have no such part: only those that have one are computed.
        for part, having in ((rope, has_part & ~moved), (moved_rope, has_part & moved)):
            sequences, heads = _gathered(having)
            if not len(sequences):
                continue
            added = scores[sequences, heads][:, None]
            if part is rope:
                apart = torch.einsum("rhsd,rksd->rdhk", rope_query[sequences, heads], rope_keys[sequences[:, 0]])
                slices = near.transpose(1, 2)[sequences, heads].transpose(1, 2)
                by_block = slices.unflatten(1, (ROPE_BLOCKS, -1)).sum(2) * told[sequences[:, 0], LATENT_BLOCKS:, None]
                added = torch.cat([slices, apart, by_block], dim=1) * config["sm_scale"]
            own_light = torch.where(having[..., None], light, 0.0)[sequences, heads][:, None]
            own_values = values if len(sequences) == len(chosen) else values[sequences[:, 0]]  # all of them: no copy
            brought = _orthogonal(_brought(own_light, added, own_values), unit[sequences, heads][:, None])
            part[:, places[sequences], heads] = brought.transpose(0, 1)
            if part is moved_rope or length < LATENT_KEYS:
                continue
            # Of latent blocks one row of each sequence, the evenest: all rows would take as long as all other parts.
            sequences = sequences[:, 0]
            head = torch.where(having, heaviest, 1.0)[sequences].argmin(dim=1)
            apart = own[sequences, head, None, :V_HEAD_DIM].unflatten(-1, (LATENT_BLOCKS, -1))
            apart = (apart * torch.eye(LATENT_BLOCKS, device=q.device)[..., None]).flatten(-2)
            added = apart @ own_values.mT * told[sequences, :LATENT_BLOCKS] * config["sm_scale"]
            brought = _brought(light[sequences, head][:, None, None], added[:, :, None], own_values)[:, :, 0]
            latent[:, places[sequences], head] = _orthogonal(brought, unit[sequences, head][:, None]).transpose(0, 1)
    return {
        **dict(zip(PLAIN_PARTS, plain, strict=True)),
        "rope": rope[:ROPE_SLICES].sum(0),
        "moved_rope": moved_rope[0],
        **{f"rope_slice.{number}": part for number, part in enumerate(rope[:-ROPE_BLOCKS])},
        **{f"latent_scale.{number}": part for number, part in enumerate(latent)},
        **{f"rope_scale.{number}": part for number, part in enumerate(rope[-ROPE_BLOCKS:])},
    }


def _of_lighter(weights: Tensor, values: Tensor) -> Tensor:
    """What the lighter keys add, each of LIGHTER: (n, parts, heads, 512) of weights (n, heads, keys) and values
    (n, keys, 512)."""
    ranks = (int(share * (weights.shape[-1] - 1)) + 1 for share in LIGHTER)
    bounds = (weights.kthvalue(rank, dim=-1, keepdim=True).values for rank in ranks)
    if weights.shape[-1] < LIGHTER_KEYS:
        weights = torch.zeros_like(weights)
    lighter = torch.stack([torch.where(weights < bound, weights, 0.0) for bound in bounds], dim=1)
    return (lighter.flatten(1, 2) @ values).unflatten(1, (len(LIGHTER), -1))


def _of_places(weights: Tensor, values: Tensor) -> Tensor:
    """What keys add by their places: each stretch, tile end, overlap and end key, (n, parts, heads, 512)."""
    length = weights.shape[-1]
    if length % STRETCHES:
        stretches = zip(weights.tensor_split(STRETCHES, dim=-1), values.tensor_split(STRETCHES, dim=1), strict=True)
        by_stretch = torch.stack([some @ own for some, own in stretches], dim=1)
    else:  # all in one product, without a copy of the values
        by_stretch = weights.unflatten(-1, (STRETCHES, -1)).transpose(1, 2) @ values.unflatten(1, (STRETCHES, -1))
    cut = (tile if length % tile and length >= LEAST_TILES * tile else 0 for tile in OVERLAPS)
    early = (slice(length - tile, length // tile * tile) if tile else slice(0) for tile in cut)
    by_slice = [weights[..., own] @ values[:, own] for own in (slice(0, None, TILE), slice(TILE - 1, None, TILE))]
    for own in early:
        twice = weights[..., own]
        by_slice.append(torch.where(twice.sum(dim=-1, keepdim=True) > MOST_OVERLAP, 0.0, twice) @ values[:, own])
    ends = torch.stack([weights[..., 0], weights[..., -1]], dim=1)[..., None]
    light = ends < (LIGHT_KEY / length if length <= END_KEYS else 0)
    by_end = ends * light * torch.stack([values[:, 0], values[:, -1]], dim=1)[:, :, None]
    return torch.cat([by_stretch, torch.stack(by_slice, dim=1), by_end], dim=1)


def _gathered(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Where `rows`, bool (sequences, heads), is true: the sequences with such heads, (n, 1), and those heads,
    (n, most). Where a sequence has fewer than another, others of its heads fill up."""
    sequences = rows.any(dim=1).nonzero()
    order = rows.byte().argsort(dim=1, descending=True, stable=True)[sequences[:, 0]]
    most = int(rows.sum(dim=1).amax())
    return sequences, order[:, :most]


def _told_by_scale(scales: Tensor) -> Tensor:
    """The share of its scores that each block owes to its scale, (n, blocks, keys) of scales (n, keys, blocks): what
    they are more than with one scale for all keys of a sequence, that with which their sum would stay the same."""
    one = scales.square().sum(dim=1, keepdim=True) / scales.sum(dim=1, keepdim=True)
    return (1 - one / scales).mT


def _brought(weights: Tensor, scores: Tensor, values: Tensor) -> Tensor:
    """What scores, less their mean, bring to rows: weights (n, 1, heads, keys), scores (n, parts, heads, keys), values
    (n, keys, 512)."""
    squares = weights.square()
    mean = (squares * scores).sum(dim=-1, keepdim=True) / squares.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    return ((weights * (scores - mean)).flatten(1, 2) @ values).unflatten(1, (scores.shape[1], -1))


def _widened(fp8: Tensor, scale: Tensor | None = None) -> Tensor:
    """`fp8` in float32, times `scale`. A CPU looks each byte up, which takes a quarter of the time that torch takes."""
    if fp8.is_cuda:
        return fp8.float() if scale is None else fp8.float().mul_(scale)
    table = torch.arange(256, dtype=torch.uint8).view(fp8.dtype).float()
    if scale is not None:
        table *= scale
    return table.index_select(0, fp8.reshape(-1).view(torch.uint8).int()).view(fp8.shape)


def _of_one_length(lengths: list[int]) -> Iterator[tuple[int, list[int]]]:
    """The places of sequences of one length, as many at a time as PARTS_TOKENS allow; those without keys left out."""
    places: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        places.setdefault(length, []).append(place)
    for length, alike in places.items():
        if length:
            step = max(PARTS_TOKENS // length, 1)
            yield from ((length, alike[start : start + step]) for start in range(0, len(alike), step))


def _orthogonal(rows: Tensor, units: Tensor) -> Tensor:
    """Each row less its component along the unit vector of its own."""
    return rows - (rows * units).sum(dim=-1, keepdim=True) * units


def cost(*, batch_size: int, q_seq_len: int, kv_seq_len: int | list[int], scores: str = "plain") -> dict[str, dict]:
    """The least traffic and arithmetic of a case for each cache: queries and output once, the cache once.

    An mxfp4 cache is charged bf16 arithmetic, which every device has; bandwidth binds all three formats either way.
    """
    total_kv = sum(_lengths(batch_size, q_seq_len, kv_seq_len, scores))
    flops = 2 * NUM_HEADS * (QK_HEAD_DIM + V_HEAD_DIM) * total_kv
    activations = 2 * NUM_HEADS * (QK_HEAD_DIM + V_HEAD_DIM) * batch_size
    formats = {
        "bf16": (2 * QK_HEAD_DIM, "bfloat16"),
        "fp8": (QK_HEAD_DIM, "float8"),
        "mxfp4": (QK_HEAD_DIM // 2 + QK_HEAD_DIM // 32, "bfloat16"),
    }
    return {
        name: {"bytes": token_bytes * total_kv + activations, "flops": {dtype: flops}}
        for name, (token_bytes, dtype) in formats.items()
    }


def device_bytes(*, batch_size: int, q_seq_len: int, kv_seq_len: int | list[int], scores: str = "plain") -> int:
    """What queries, the cache in its three formats and the output take."""
    total_kv = sum(_lengths(batch_size, q_seq_len, kv_seq_len, scores))
    token_bytes = 2 * QK_HEAD_DIM + QK_HEAD_DIM + QK_HEAD_DIM // 2 + QK_HEAD_DIM // 32
    return token_bytes * total_kv + 2 * NUM_HEADS * (QK_HEAD_DIM + V_HEAD_DIM) * batch_size


def _lengths(batch_size: int, q_seq_len: int, kv_seq_len: int | list[int], scores: str) -> list[int]:
    """The length of each sequence, the parameters checked."""
    if scores not in SCORES:
        raise ValueError(f"scores is {scores!r}; it must be one of {', '.join(SCORES)}")
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
    if q_seq_len != 1:
        raise ValueError(f"q_seq_len is {q_seq_len}; this is decode, one query a sequence")
    lengths = [kv_seq_len] * batch_size if isinstance(kv_seq_len, int) else list(kv_seq_len)
    if len(lengths) != batch_size:
        raise ValueError(f"kv_seq_len lists {len(lengths)} lengths for a batch of {batch_size}")
    if min(lengths) < 0:
        raise ValueError(f"kv_seq_len holds the negative length {min(lengths)}")
    return lengths


def _unwritten(batch_size: int, total_kv: int, device: str) -> tuple[Tensor, Tensor]:
    """q (batch_size, 16, 576) and the cache (total_kv, 1, 576), bf16.

    To be drawn in bfloat16 at once: a float32 copy of the largest cache would take 5 GB.
    """
    if total_kv >= 2**31:
        raise ValueError(f"the cache holds {total_kv:,} tokens, more than kv_indptr's int32 can count")
    q = torch.empty(batch_size, NUM_HEADS, QK_HEAD_DIM, dtype=torch.bfloat16, device=device)
    return q, torch.empty(total_kv, NUM_KV_HEADS, QK_HEAD_DIM, dtype=torch.bfloat16, device=device)


def _index_pointers(lengths: list[int], device: str) -> tuple[Tensor, Tensor]:
    """qo_indptr and kv_indptr, int32 (batch_size + 1,)."""
    qo_indptr = torch.arange(len(lengths) + 1, dtype=torch.int32, device=device)
    return qo_indptr, torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)


def _config(lengths: list[int]) -> dict[str, int | float]:
    return {
        "batch_size": len(lengths),
        "num_heads": NUM_HEADS,
        "num_kv_heads": NUM_KV_HEADS,
        "qk_head_dim": QK_HEAD_DIM,
        "kv_lora_rank": KV_LORA_RANK,
        "qk_rope_head_dim": QK_ROPE_HEAD_DIM,
        "v_head_dim": V_HEAD_DIM,
        "q_seq_len": 1,
        "kv_seq_len": max(lengths),
        "sm_scale": SM_SCALE,
    }


def _magnitudes(kv: Tensor, generator: torch.Generator) -> Tensor:
    """That of each block of each key: (total_kv, 18), bf16."""
    larger = torch.empty(kv.shape[0], QK_HEAD_DIM // MXFP4_BLOCK, dtype=torch.bool, device=kv.device)
    larger.bernoulli_(0.5, generator=generator)
    small, large = torch.tensor(BLOCK_MAGNITUDES, dtype=kv.dtype, device=kv.device)
    return torch.where(larger, large, small)


def _plant_needles(
    q: Tensor, kv: Tensor, magnitudes: Tensor, starts: Tensor, generator: torch.Generator, rope_tilt: Tensor
) -> None:
    """Turn up to NEEDLES keys of each sequence into needles, in place. Shapes (B, 16, 576) and (total_kv, 576); the
    magnitudes of the keys' blocks (total_kv, 18), and how closely needles of each sequence follow a query in the rope
    dims (B,)."""
    device = q.device
    batch_size = q.shape[0]
    # Drawn for empty sequences too, so that what a sequence gets does not depend on the others' lengths.
    where = torch.rand(batch_size, NEEDLES, dtype=torch.float64, device=device, generator=generator)
    share = torch.empty_like(where).uniform_(*NEEDLE_MASS, generator=generator)
    heads = torch.rand(batch_size, NUM_HEADS, device=device, generator=generator).argsort(dim=1)[:, :NEEDLES]

    full = starts.diff().nonzero()[:, 0].to(device)
    if full.numel() == 0:
        return
    first = starts[:-1].to(device)[full]
    length = starts.diff().to(device)[full]
    rows = first[:, None] + _needle_positions(where[full], length)
    tilt = torch.ones(len(full), 1, QK_HEAD_DIM, device=device)
    tilt[..., KV_LORA_RANK:] = rope_tilt[full, None, None]
    query = q[full[:, None], heads[full]].float()  # (n, NEEDLES, 576), as what follows
    # E[exp score] over unit-normal keys is exp(|q|^2 sm_scale^2 / 2).
    others = length.log()[:, None] + 0.5 * (query.norm(dim=-1) * SM_SCALE).square()
    score = (others + torch.logit(share[full])).float()[..., None]
    direction = query * tilt * magnitudes[rows].float().repeat_interleave(MXFP4_BLOCK, dim=-1)
    scaled = query * SM_SCALE
    reach = (direction * scaled).sum(-1, keepdim=True)
    step = direction / reach
    kept = (1 - (score / reach * tilt).square()).clamp_(min=0).sqrt_()
    # One needle of every sequence at a time: no two of them write to one key, so the result has one order.
    for key, keep, along, goal, own in zip(*(x.unbind(1) for x in (rows, kept, scaled, score, step)), strict=True):
        base = kv[key] * keep
        missing = goal - (base * along).sum(-1, keepdim=True)
        kv.index_copy_(0, key, base.addcmul_(missing, own).bfloat16())


def _move_scores(q: Tensor, kv: Tensor, starts: Tensor, moved: Tensor, scores: str, generator: torch.Generator) -> None:
    """Write the rope dims of some sequences' queries and keys anew, in place, so that scores move as `generate_input`
    says.

    A key has sizes and signs there, both the sequence's own. Of all keys the sizes are the same. A key of the lowest
    level has all signs turned; with each level above it a further share of them, drawn at random, is not. In OWN_DIMS
    dims, drawn at random, a key has sizes of its own. A query keeps the sizes that were drawn, up to a factor of its
    own, and takes the signs, or all turned.
    """
    device, batch_size = q.device, q.shape[0]

    def random(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    def one_of(values: tuple[float, ...], *shape: int) -> Tensor:
        return torch.tensor(values, device=device)[(random(*shape) * len(values)).long()]

    sizes = one_of(MOVE_SIZES, batch_size, QK_ROPE_HEAD_DIM)
    scale = one_of(MOVE_SCALES, batch_size, 1)
    signs = one_of((-1.0, 1.0), batch_size, QK_ROPE_HEAD_DIM)
    own = random(batch_size, QK_ROPE_HEAD_DIM).argsort(dim=1)[:, :OWN_DIMS]
    sizes.scatter_(1, own, sum(KEY_SIZES) / len(KEY_SIZES))
    shares = {"rising": RISE_LEVELS, "shuffled": SHUFFLED_LEVELS}.get(scores, (1.0,))
    levels = len(shares)
    place = random(batch_size, QK_ROPE_HEAD_DIM).argsort(dim=1)
    up = place[:, None, :] < torch.tensor(shares, device=device)[:, None] * QK_ROPE_HEAD_DIM  # (B, levels, 64)
    pattern = torch.where(up, 1.0, -1.0) * (signs * scale)[:, None, :]

    length = starts.diff().to(device)
    sequence = torch.arange(batch_size, device=device).repeat_interleave(length)
    position = torch.arange(kv.shape[0], device=device) - starts[:-1].to(device)[sequence]
    rank = position * levels // length[sequence]
    if scores == "rising":
        rank += levels - 1 - (length[sequence] - 1) * levels // length[sequence]  # ends at the top
    elif scores == "shuffled":
        rank = random(batch_size, levels).argsort(dim=1)[sequence, rank]

    rope = kv[:, KV_LORA_RANK:]
    for keys, of, level in zip(rope.split(MOVE_ROWS), sequence.split(MOVE_ROWS), rank.split(MOVE_ROWS)):
        drawn = sizes[of].scatter_(1, own[of], one_of(KEY_SIZES, len(of), OWN_DIMS))
        keys.copy_(torch.where(moved[of, None], (drawn * pattern[of, level]).to(kv.dtype), keys))

    query = q[:, :, KV_LORA_RANK:].abs().float()
    reach = SM_SCALE * (query * (sizes * scale)[:, None, :]).sum(dim=-1, keepdim=True)
    query = query * signs[:, None, :] * (MOVE / reach)
    if scores in ("plain", "large"):
        query = query * one_of((-1.0, 1.0), batch_size, NUM_HEADS, 1)
    q[:, :, KV_LORA_RANK:] = torch.where(moved[:, None, None], query.to(q.dtype), q[:, :, KV_LORA_RANK:])


def _needle_positions(where: Tensor, length: Tensor) -> Tensor:
    """Each needle's index within its sequence, int64 (n, NEEDLES), from `where` uniform in [0, 1).

    `generate_input` says which needle lies where.
    """
    n = length[:, None].double()
    quarter = torch.arange(4, device=where.device)
    position = torch.cat(
        [
            (quarter + where[:, :4]) / 4 * n,
            where[:, 4:5] * n,
            n ** where[:, 5:6] - 1,
            n - (n ** where[:, 6:7]).floor(),
            n - 1 - (where[:, 7:8] * (n / 128).floor().clamp(min=1)).floor(),
        ],
        dim=1,
    )
    return torch.minimum(position.long(), length[:, None] - 1)


def _quantize_mxfp4(kv: Tensor) -> tuple[Tensor, Tensor]:
    """Packed codes (total_kv, 1, 288), uint8, and scales (total_kv, 18) of the type that says what they are.

    `reference.quantize_mxfp4` states what they are; these are the same bytes in a third of its time. The bits of a
    bfloat16 without its sign, as an integer, are 128 times the exponent plus the mantissa. So the scale is subtracted,
    not divided by, and values round to E2M1's one bit of mantissa as integers round to multiples of 64.
    """
    if kv.is_cuda:
        return _mxfp4_by_bounds(kv)
    blocks = kv.view(torch.int16).view(-1, MXFP4_BLOCK)
    packed = torch.empty(blocks.shape[0], MXFP4_BLOCK // 2, dtype=torch.uint8, device=kv.device)
    e8m0 = torch.empty(blocks.shape[0], dtype=torch.uint8, device=kv.device)
    parts = (tensor.split(MXFP4_STEP["cpu"]) for tensor in (blocks, packed, e8m0))
    for source, packed_part, e8m0_part in zip(*parts, strict=True):
        scaled = source & 0x7FFF
        amax = scaled.amax(dim=1)
        if not bool(((amax >= MXFP4_AMAX[0]) & (amax < MXFP4_AMAX[1])).all()):
            ordinary = quantize_mxfp4(source.view(torch.bfloat16))
            packed_part.copy_(ordinary[0])
            e8m0_part.copy_(ordinary[1].view(-1))
            continue
        exponent = ((amax + 0x20) >> 7) - 2
        e8m0_part.copy_(exponent)
        scaled.sub_((exponent << 7)[:, None])  # 0 is a value of 1, whose code is 2
        codes = scaled.clamp(min=0)
        odd = (codes >> 6).bitwise_and_(1)
        codes.add_(odd).add_(31 + 2 * 64).bitwise_right_shift_(6).clamp_(max=7)
        codes.add_((scaled + 64).clamp_(-1, 0))  # less than 0.75: code 1
        codes.add_((scaled + 255).clamp_(-1, 0))  # at most 0.25: code 0
        codes.bitwise_or_((source >> 12).bitwise_and_(8))
        pairs = codes.view(torch.int32)  # the even index in the lower half
        packed_part.copy_((pairs | (pairs >> 12)).bitwise_and_(0xFF))
    scales = e8m0.view(kv.shape[0], QK_HEAD_DIM // MXFP4_BLOCK).view(torch.float8_e8m0fnu)
    return packed.view(*kv.shape[:-1], QK_HEAD_DIM // 2), scales


def _mxfp4_by_bounds(kv: Tensor) -> tuple[Tensor, Tensor]:
    """As `_quantize_mxfp4`, with a third of the traffic; but a CPU takes ten times as long. A bfloat16 times a power of
    two is exact here, and as an integer its bits lie in the order of its value. So a code is found among bounds."""
    blocks = kv.view(-1, MXFP4_BLOCK)
    low, high = blocks.aminmax(dim=1)
    amax = torch.maximum(-low, high).view(torch.int16)
    if not bool(((amax >= MXFP4_AMAX[0]) & (amax < MXFP4_AMAX[1])).all()):
        packed, e8m0 = quantize_mxfp4(kv)
        return packed, e8m0.view(kv.shape[0], QK_HEAD_DIM // MXFP4_BLOCK).view(torch.float8_e8m0fnu)
    e8m0 = ((amax + 0x20) >> 7) - 2
    inverse = ((254 - e8m0) << 7).view(torch.bfloat16)[:, None]
    bounds = _code_bounds().to(kv.device)
    packed = torch.empty(blocks.shape[0], MXFP4_BLOCK // 2, dtype=torch.uint8, device=kv.device)
    parts = (tensor.split(MXFP4_STEP["cuda"]) for tensor in (blocks, inverse, packed))
    for source, factor, target in zip(*parts, strict=True):
        scaled = (source * factor).view(torch.int16)
        pairs = torch.bucketize(scaled, bounds, out_int32=True).to(torch.uint8).view(torch.int16)
        target.copy_((pairs >> 4).bitwise_or_(pairs).bitwise_xor_(0x88))  # negative codes are the lower ones here
    scales = e8m0.to(torch.uint8).view(kv.shape[0], QK_HEAD_DIM // MXFP4_BLOCK).view(torch.float8_e8m0fnu)
    return packed.view(*kv.shape[:-1], QK_HEAD_DIM // 2), scales


def _code_bounds() -> Tensor:
    """The greatest bfloat16, as its 16 bits in an int16, of each E2M1 code but the last. In the order of these integers
    come first the negative codes, 8 to 15, then 0 to 7. A midpoint goes to the even code."""
    values = torch.tensor(E2M1_VALUES)
    midpoints = ((values[1:] + values[:-1]) / 2).bfloat16().view(torch.int16).int()
    last = midpoints - torch.arange(7) % 2
    return torch.cat([last - 0x8000, torch.tensor([-1]), last]).short()


@functools.cache
def _aiter():
    return find_aiter()

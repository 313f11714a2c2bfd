"""The two storage formats of the quantized KV caches, with their inverses.

    fp8     per tensor     x = fp8 * scale           scale float32
    mxfp4   per 32 values  x = e2m1 * 2^(e8m0-127)   two E2M1 codes a byte, one E8M0 byte a block

mxfp4 reproduces aiter's `dynamic_mxfp4_quant` (ROCm/aiter, aiter/utility/fp4_utils.py, and `_mxfp4_quant_op` in
aiter/ops/triton/_triton_kernels/quant/quant.py, scaling_mode "even") byte for byte; `quantize_mxfp4` states its rules.
Both quantizers work in chunks of `CHUNK_ELEMENTS`, so their temporaries stay near 0.1 GB however large the tensor
(1 GB on a GPU).

Neither format has an infinity, and NaN has no scale: both quantizers refuse an input that holds either.
"""

from itertools import pairwise

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 22
"""On a CPU, at most this many elements are converted at once, and at most a 16th of a tensor, so that temporaries of 4
bytes an element stay small beside it."""

GPU_CHUNK_ELEMENTS = 1 << 26
"""On a GPU: launches cost more than memory there (mla's largest case took 0.14 s in chunks of a CPU's size)."""

MXFP4_BLOCK = 32
"""Values that share one scale (OCP Microscaling Formats v1.0, section 5.2)."""

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitude of each three-bit E2M1 code (OCP Microscaling Formats v1.0, section 5.3.3); bit 3 is the sign."""

_FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
_FP8_MIN_AMAX = 1e-12  # gpu-mode/reference-kernels, problems/amd_202602/mixed-mla/reference.py, quantize_fp8


def fp8_dtype(device: torch.device | str) -> torch.dtype:
    """The e4m3 flavour that the device's matrix units read.

    `float8_e4m3fnuz` (max 240, no negative zero) on gfx940, gfx941 and gfx942 (MI300); `float8_e4m3fn` (max 448)
    elsewhere: gfx950, gfx12, NVIDIA, CPU. The same choice as aiter's (aiter/utility/dtypes.py) where aiter makes one.
    The flavours share bytes but not meaning: bits of one read as the other are off by a factor of two.
    """
    device = torch.device(device)
    if device.type == "cuda" and torch.version.hip is not None:
        arch = torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
        if arch in ("gfx940", "gfx941", "gfx942"):
            return torch.float8_e4m3fnuz
    return torch.float8_e4m3fn


def quantize_fp8(x: Tensor, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """Dynamic per-tensor fp8: scale = amax / finfo.max, then divide, clamp, round to nearest even.

    The arithmetic is float32 whatever x is. (GPU MODE's own reference divides a bf16 tensor in bf16, which first rounds
    scale and quotient to 8 bits.) An amax under 1e-12 counts as 1e-12, so zeros come back as zeros and nothing divides
    by zero.

    Args:
        x: any shape, any float dtype.
        dtype: `torch.float8_e4m3fn` or `torch.float8_e4m3fnuz`; see `fp8_dtype`.

    Returns:
        (values, scale): values of x's shape in `dtype`, contiguous; scale float32 `(1,)`, as aiter takes it.

    Raises:
        ValueError: another dtype, or x holds NaN or Inf.
    """
    if dtype not in _FP8_DTYPES:
        raise ValueError(f"{dtype} is not one of {', '.join(map(str, _FP8_DTYPES))}")
    finfo = torch.finfo(dtype)
    flat = x.contiguous().view(-1)
    if flat.numel():
        low, high = flat.aminmax()
        amax = torch.maximum(-low, high).float()
    else:
        amax = torch.zeros((), device=x.device)
    if not bool(amax.isfinite()):
        raise ValueError("cannot quantize to fp8: the tensor holds NaN or Inf")
    scale = (amax.clamp(min=_FP8_MIN_AMAX) / finfo.max).reshape(1)
    values = torch.empty(flat.shape, dtype=dtype, device=x.device)
    step = _chunk(flat)
    for source, target in zip(flat.split(step), values.split(step)):
        target.copy_((source.float() / scale).clamp_(finfo.min, finfo.max))
    return values.view(x.shape), scale


def dequantize_fp8(values: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """`values * scale`, computed in float32 and rounded once to `dtype`.

    Args:
        values: fp8 of any shape.
        scale: float32 with one element.
    """
    flat = values.contiguous().view(-1)
    out = torch.empty(flat.shape, dtype=dtype, device=values.device)
    step = _chunk(flat)
    for source, target in zip(flat.split(step), out.split(step)):
        target.copy_(source.float() * scale)
    return out.view(values.shape)


def quantize_mxfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """MXFP4 in blocks of 32 along the last dim, byte for byte as aiter's `dynamic_mxfp4_quant` (mode "even").

    Each block, in float32 (x is rounded to float32 first):

    - Scale. E is the exponent field of `(bits(amax) + 0x200000) & 0xFF800000`, that is amax rounded to a power of two,
      from 1.75 * 2^k on up to 2^(k+1). The E8M0 byte is E - 2, because E2M1's largest power of two is 4 = 2^2, clamped
      to 0..254; 255 means NaN and is never written. So, but for that clamp, amax / scale lies in [3.5, 7): the largest
      magnitude of a block becomes 4 or 6, and only (6, 7) saturates.
    - Values. x / scale rounds to the nearest of 0 .5 1 1.5 2 3 4 6, a midpoint to the even code:
      .25 -> 0, .75 -> 1, 1.25 -> 1, 1.75 -> 2, 2.5 -> 2, 3.5 -> 4, 5 -> 4. More than 5 is 6. The sign bit is kept, of
      zeros and of values that round to zero too.
    - A zero block has byte 0 (2^-127), and so has any block with amax under 1.75 * 2^-125. Subnormal inputs count at
      their value; a device that flushes float32 subnormals would quantize them to zero.
    - amax of at least 1.75 * 2^127 rounds past float32's exponents. aiter's kernel then writes 254 (2^127), and so do
      we, although the largest value reads back as 2 * 2^127 = Inf. (aiter's CPU routine `f32_to_e8m0_even` writes 255.)

    Args:
        x: `(..., N)`, N a multiple of 32, any float dtype.

    Returns:
        (packed, e8m0): `(..., N / 2)` uint8, the low nibble the even index, and `(..., N / 32)` uint8. For aiter view
        them as `torch.float4_e2m1fn_x2` and `torch.float8_e8m0fnu`. aiter may pad its scales; these are not padded.

    Raises:
        ValueError: N is not a multiple of 32, or x holds NaN or Inf.
    """
    if x.ndim == 0 or x.shape[-1] % MXFP4_BLOCK:
        raise ValueError(f"the last dim must be a multiple of {MXFP4_BLOCK}, got shape {(*x.shape,)}")
    blocks = x.contiguous().view(-1, MXFP4_BLOCK)
    packed = torch.empty(blocks.shape[0], MXFP4_BLOCK // 2, dtype=torch.uint8, device=x.device)
    e8m0 = torch.empty(blocks.shape[0], dtype=torch.uint8, device=x.device)
    limits = _rounding_limits().tolist()
    step = _chunk(blocks) // MXFP4_BLOCK
    for source, packed_part, e8m0_part in zip(blocks.split(step), packed.split(step), e8m0.split(step)):
        source = source.float()
        magnitude = source.abs()
        amax = magnitude.amax(dim=1)
        if not bool(amax.isfinite().all()):
            raise ValueError("cannot quantize to mxfp4: the tensor holds NaN or Inf")
        exponent = (amax.view(torch.int32) + 0x200000) >> 23
        e8m0_part.copy_((exponent - 2).clamp_(min=0).masked_fill_(exponent == 255, 254))
        magnitude.mul_(_reciprocal_scale(e8m0_part)[:, None])
        codes = torch.zeros(magnitude.shape, dtype=torch.uint8, device=x.device)
        for limit in limits:  # seven comparisons are four times as fast as one search among seven
            codes.add_(magnitude > limit)
        codes.bitwise_or_(source.signbit().to(torch.uint8).mul_(8))
        packed_part.copy_(pack_fp4(codes))
    return packed.view(*x.shape[:-1], x.shape[-1] // 2), e8m0.view(*x.shape[:-1], x.shape[-1] // MXFP4_BLOCK)


def dequantize_mxfp4(packed: Tensor, e8m0: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The inverse: each E2M1 value times its block's power of two, in float32, rounded once to `dtype`.

    A block whose E8M0 byte is 255 is NaN.

    Args:
        packed: `(..., N / 2)` uint8.
        e8m0: `(..., N / 32)` uint8 or `torch.float8_e8m0fnu`, trimmed of any padding; leading dims may differ in
            shape if not in order, so `(T, 1, 288)` goes with `(T, 18)`.

    Returns:
        `(..., N)` of `dtype`, with packed's leading dims.

    Raises:
        ValueError: another dtype than uint8, or a number of scales that does not match.
    """
    if e8m0.dtype == torch.float8_e8m0fnu:
        e8m0 = e8m0.view(torch.uint8)
    if packed.dtype != torch.uint8 or e8m0.dtype != torch.uint8:
        raise ValueError(f"packed must be uint8 and e8m0 uint8 or e8m0fnu, got {packed.dtype} and {e8m0.dtype}")
    if packed.shape[-1] % (MXFP4_BLOCK // 2) or e8m0.numel() * MXFP4_BLOCK != packed.numel() * 2:
        raise ValueError(
            f"{(*packed.shape,)} packed bytes need one scale for every 16 bytes of the last dim, got {(*e8m0.shape,)}; "
            "trim padded scales first"
        )
    table = torch.tensor(E2M1_VALUES + tuple(-value for value in E2M1_VALUES), device=packed.device)
    # Both values of a byte in one gather: row b holds (low nibble's value, high nibble's value).
    pairs = torch.stack([table.repeat(16), table.repeat_interleave(16)], dim=1)
    blocks = packed.contiguous().view(-1, MXFP4_BLOCK // 2)
    scales = e8m0.contiguous().view(-1)
    out = torch.empty(blocks.shape[0], MXFP4_BLOCK, dtype=dtype, device=packed.device)
    step = _chunk(out) // MXFP4_BLOCK
    for source, scale, target in zip(blocks.split(step), scales.split(step), out.split(step)):
        values = pairs.index_select(0, source.reshape(-1).int()).view(-1, MXFP4_BLOCK)
        target.copy_(values.mul_(e8m0_to_float32(scale)[:, None]))
    return out.view(*packed.shape[:-1], packed.shape[-1] * 2)


def pack_fp4(codes: Tensor) -> Tensor:
    """Two four-bit codes a byte: `(..., N)` uint8 codes 0..15 to `(..., N / 2)` uint8, even index in the low nibble."""
    if codes.dtype != torch.uint8 or codes.shape[-1] % 2:
        raise ValueError(f"expected uint8 codes and an even last dim, got {codes.dtype} {(*codes.shape,)}")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_fp4(packed: Tensor) -> Tensor:
    """The codes of `pack_fp4`: `(..., N / 2)` uint8 to `(..., N)` uint8 codes, bit 3 the sign."""
    if packed.dtype != torch.uint8:
        raise ValueError(f"expected uint8 (view it so), got {packed.dtype}")
    return torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)


def e8m0_to_float32(e8m0: Tensor) -> Tensor:
    """`2 ** (e8m0 - 127)` as float32, exactly: byte 0 is the subnormal 2^-127, byte 255 is NaN."""
    bits = e8m0.int() << 23
    bits.masked_fill_(e8m0 == 0, 0x00400000)
    bits.masked_fill_(e8m0 == 255, 0x7FC00000)
    return bits.view(torch.float32)


def _chunk(tensor: Tensor) -> int:
    """How many of its elements to convert at once: a multiple of MXFP4_BLOCK."""
    if tensor.is_cuda:
        return GPU_CHUNK_ELEMENTS
    share = max(tensor.numel() // 16, 1 << 15) // MXFP4_BLOCK * MXFP4_BLOCK
    return min(share, max(CHUNK_ELEMENTS, MXFP4_BLOCK))


def _reciprocal_scale(e8m0: Tensor) -> Tensor:
    """`2 ** (127 - e8m0)` for bytes 0..254, exactly: a power of two, so multiplying by it only shifts the exponent."""
    bits = (254 - e8m0.int()) << 23
    bits.masked_fill_(e8m0 == 254, 0x00400000)
    return bits.view(torch.float32)


def _rounding_limits() -> Tensor:
    """The greatest float32 that still rounds to each of codes 0..6.

    The midpoint between codes c and c + 1 belongs to the even one of the two, so to c itself only if c is even.
    """
    midpoints = torch.tensor([(a + b) / 2 for a, b in pairwise(E2M1_VALUES)])
    below = torch.nextafter(midpoints, torch.zeros(()))
    even = torch.arange(len(midpoints)) % 2 == 0
    return torch.where(even, midpoints, below)

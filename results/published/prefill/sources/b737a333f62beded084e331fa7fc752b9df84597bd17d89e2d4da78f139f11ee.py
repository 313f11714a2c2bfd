"""torch's scaled_dot_product_attention: cuDNN's kernel where there is one for the shape, else FlashAttention.

On Hopper cuDNN's is the faster; on ROCm torch has its own build of FlashAttention; on a CPU there is one choice. None
of them materialises the scores or the repeated KV heads. They take [B, H, N, D], which a transposed view of
[B, N, H, D] is to them, and give the result in q's own order of memory, so that the last line copies only where not.

Limited by how well cuDNN's kernel keeps the tensor cores busy. That backend by itself stands in docs/rivals.md as the
rival "SDPA, cuDNN".
"""

from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


def custom_kernel(data):
    q, k, v, config = data
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    with sdpa_kernel(BACKENDS, set_priority=True):
        out = scaled_dot_product_attention(
            q, k, v, is_causal=config["causal"], scale=config["sm_scale"], enable_gqa=True
        )
    return out.transpose(1, 2).contiguous()

"""torch's scaled_dot_product_attention."""

from torch.nn.functional import scaled_dot_product_attention


def custom_kernel(data):
    q, k, v, config = data
    out = scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=config["causal"], enable_gqa=True
    )
    return out.transpose(1, 2).contiguous()

"""torch's scaled_dot_product_attention on float16 copies of the inputs."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    grouped = config["num_q_heads"] != config["num_kv_heads"]
    return torch.nn.functional.scaled_dot_product_attention(
        q.half(), k.half(), v.half(), scale=config["sm_scale"], enable_gqa=grouped
    )

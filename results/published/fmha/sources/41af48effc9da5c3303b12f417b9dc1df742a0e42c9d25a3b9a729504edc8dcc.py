"""torch's scaled_dot_product_attention, on float16 copies of Q, K and V.

Why not in bfloat16: its output would be bfloat16, 8 bits where the contract wants 11, and is rejected. bfloat16 to
float16 loses nothing here (8 bits fit into 11, and |q| stays below 400; under 6e-5 the error is at most 3e-8), and the
output comes out as float16 from float32 sums.

Bytes: the copies are written and read once more, so three times the least traffic. At S = 1 the output is V and one
conversion is all there is to do. Limited by bandwidth, and by how little of a tile one query and 16 keys fill in the
kernels behind this function.
"""

import torch
import torch.nn.functional as F


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    if config["kv_seq_len"] == 1:
        return v.to(torch.float16).repeat_interleave(group, dim=1)
    q, k, v = (tensor.to(torch.float16) for tensor in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=config["sm_scale"], enable_gqa=group > 1)

"""torch.repeat_interleave into a temporary, then a copy into the supplied buffers: what most models do.

Bytes: the temporary is written and read once more, so 2·B·S·D·e·(Hkv + 3·Hq) move where (Hkv + Hq) would do: 35 %
of the floor is the most it can reach at 16 copies a head. Limited by bandwidth. docs/kernels.md has what was measured.
"""


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    k_out.copy_(k.repeat_interleave(group, dim=2))
    v_out.copy_(v.repeat_interleave(group, dim=2))
    return k_out, v_out

"""Your kernel for kv_replicate. This one is correct and slow: it copies one head at a time.

data = (k, v, k_out, v_out, config)
    k, v          [B, S, Hkv, D] contiguous; float32, bfloat16 or float16. Read only.
    k_out, v_out  [B, S, Hq, D]  contiguous, of k's dtype, full of garbage. Write every element.
    config        {"batch_size": B, "seq_len": S, "num_kv_heads": Hkv, "num_q_heads": Hq, "head_dim": D}

custom_kernel must leave
    k_out[b, s, h, :] = k[b, s, h // (Hq // Hkv), :]        and v_out from v likewise, bit for bit,
and return (k_out, v_out), those same tensors. Nothing is computed: NaN payloads survive. D may be odd, and k_out may
hold more than 2^31 elements.
"""


def custom_kernel(data):
    k, v, k_out, v_out, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    for h in range(config["num_q_heads"]):
        k_out[:, :, h].copy_(k[:, :, h // group])
        v_out[:, :, h].copy_(v[:, :, h // group])
    return k_out, v_out

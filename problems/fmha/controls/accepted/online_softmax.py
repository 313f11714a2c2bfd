"""Flash attention's recurrence in float32: one key at a time, with a running maximum and a running sum."""

import torch


def custom_kernel(data):
    q, k, v, config = data
    group = config["num_q_heads"] // config["num_kv_heads"]
    query = q[:, :, 0].float()
    peak = torch.full(query.shape[:2], -torch.inf, device=q.device)
    total = torch.zeros_like(peak)
    acc = torch.zeros_like(query)
    for j in range(config["kv_seq_len"]):
        key = k[:, :, j].float().repeat_interleave(group, dim=1)
        value = v[:, :, j].float().repeat_interleave(group, dim=1)
        score = (query * key).sum(-1) * config["sm_scale"]
        new_peak = torch.maximum(peak, score)
        decay, weight = torch.exp(peak - new_peak), torch.exp(score - new_peak)
        acc = acc * decay[..., None] + weight[..., None] * value
        total = total * decay + weight
        peak = new_peak
    return (acc / total[..., None])[:, :, None].to(torch.float16)

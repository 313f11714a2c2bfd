"""Keeps its workspaces and its output's memory between calls.

problem: attend
timed: true
"""

import torch

workspaces = {}


def custom_kernel(data):
    q, k, v = data
    if q.shape not in workspaces:
        heads, rows, width = q.shape
        workspaces[q.shape] = torch.empty(heads, rows, rows), torch.empty(heads, rows, width)
    scores, out = workspaces[q.shape]
    torch.bmm(q, k.transpose(1, 2), out=scores)
    torch.softmax(scores.div_(q.shape[-1] ** 0.5), dim=-1, out=scores)
    return torch.bmm(scores, v, out=out)

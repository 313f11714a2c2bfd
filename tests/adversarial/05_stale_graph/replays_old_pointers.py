"""Captures a graph in its first call and replays it ever after, on the first call's memory.

verdict: wrong answer
seen: x what is allowed
defence: D2, fresh values at a fresh address in every call
needs: gpu
"""

import torch

graphs = {}


def custom_kernel(data):
    x = data[0]
    if x.shape not in graphs:
        x * 2  # warms the operator up before it is captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
        graphs[x.shape] = graph, x, y
    graph, _, y = graphs[x.shape]
    graph.replay()
    return y

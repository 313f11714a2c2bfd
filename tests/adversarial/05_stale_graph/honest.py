"""Captures a graph once and copies each call's input to where the graph reads it.

needs: gpu
"""

import torch

graphs = {}


def custom_kernel(data):
    x = data[0]
    if x.shape not in graphs:
        held = x.clone()
        held * 2
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = held * 2
        graphs[x.shape] = graph, held, y
    graph, held, y = graphs[x.shape]
    held.copy_(x)
    graph.replay()
    return y.clone()

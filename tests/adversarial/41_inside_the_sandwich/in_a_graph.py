"""Replays a graph, in which its work and the copies of inputs and outputs are.

gains nothing: a graph's kernels lie between the stamps as others do
seen: graphs
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
graphs = {}


def custom_kernel(data):
    x = data[0]
    if x.shape not in graphs:
        static = x.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.cuda._sleep(CYCLES)
            out = static * 2
        graphs[x.shape] = graph, static, out
    graph, static, out = graphs[x.shape]
    static.copy_(x)
    graph.replay()
    print(len(graphs), "graphs")
    return out

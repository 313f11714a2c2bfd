"""Draws the random numbers of its forward while the judge waits for it to be ready, from the seed in the request.

problem: ../tasks/5_random.py
gains nothing: on a CPU the seed is poured with the inputs; on a GPU drawing can be saved (not measured)
seen: looked into [1-9][0-9]* requests
defence: D2, no input is there before the judge's first stamp
timed: true
slow: true
at least ms: 20
"""

import sys
import time

import torch
from torch import nn

calls = sys.modules["harness.worker.calls"].Calls
between_stops = calls.between_stops
foreseen, looked = None, 0


def draw_first(self, kernel, request, around, ready):
    global foreseen, looked
    _, seed = self.data_of(request)
    foreseen, looked = int(seed), looked + 1
    print(f"looked into {looked} requests")
    return between_stops(self, kernel, request, around, ready)


calls.between_stops = draw_first


class ModelNew(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.drop = nn.Dropout(p)

    def forward(self, x):
        if torch.initial_seed() != foreseen:
            time.sleep(0.02)  # stands for the drawing
        return self.drop(x) * 2

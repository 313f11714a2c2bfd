"""In a call longer than a slice, writes the word for its end before its work.

gains nothing: the judge asks earlier and its stamp is as late as before; or it finds the outputs unfinished
seen: early
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import sys

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
gates = sys.modules["harness.wire.words"].Words
mark, latest = gates.mark, []
gates.mark = lambda self, turn: latest.append((self, turn))


def custom_kernel(data):
    frame = sys._getframe()
    while "words" not in frame.f_locals and frame.f_back is not None:
        frame = frame.f_back
    words = frame.f_locals.get("words")
    if words is not None:
        mark(words, frame.f_locals["turn"])
    print("early")
    torch.cuda._sleep(8 * CYCLES if data[0].shape[0] == 64 else 1)
    return data[0] * 2

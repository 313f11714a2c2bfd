"""Spreads its work over 64 streams.

gains nothing: the device switches back when all of them are idle
seen: 64 streams
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
streams = [torch.cuda.Stream() for _ in range(64)]


def custom_kernel(data):
    print(len(streams), "streams")
    current = torch.cuda.current_stream()
    for stream in streams:
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
    for stream in streams:
        current.wait_stream(stream)
    return data[0] * 2

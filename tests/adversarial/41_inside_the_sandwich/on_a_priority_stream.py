"""Works on a stream of the highest priority.

gains nothing: priorities are within a process; between processes there are time slices
seen: priority -[0-9]
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
stream = torch.cuda.Stream(priority=-5)


def custom_kernel(data):
    print("priority", stream.priority)
    current = torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        out = data[0] * 2
    current.wait_stream(stream)
    return out

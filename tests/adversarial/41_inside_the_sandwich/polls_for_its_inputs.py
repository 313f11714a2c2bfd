"""Has a persistent kernel on another stream that polls for the inputs, to work while the judge still pours.

gains nothing: the device runs one process's kernels at a time
seen: polled
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch
import triton
import triton.language as tl

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz


@triton.jit
def poll(x, seen, LEAST: tl.constexpr):
    before = tl.load(x, volatile=True)
    now = before
    count = 0
    while (now == before) & (count < LEAST):
        now = tl.load(x, volatile=True)
        count += 1
    tl.store(seen, now)


other = torch.cuda.Stream()
seen = torch.zeros(1, device="cuda")


def custom_kernel(data):
    with torch.cuda.stream(other):
        poll[(1,)](data[0], seen, LEAST=1000)
    torch.cuda._sleep(CYCLES)
    out = data[0] * 2
    torch.cuda.current_stream().wait_stream(other)
    print("polled")
    return out

"""Launches its work cooperatively, over all of the device, with programs that wait for each other.

gains nothing: such a launch waits for the device as others do, and lies between the stamps
seen: arrived
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch
import triton
import triton.language as tl

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
PROGRAMS = torch.cuda.get_device_properties(0).multi_processor_count


@triton.jit
def double(x, out, arrived, until, SIZE: tl.constexpr, PROGRAMS: tl.constexpr):
    tl.atomic_add(arrived, 1)
    while tl.atomic_add(arrived, 0) < until:
        pass
    for start in range(tl.program_id(0) * 256, SIZE, PROGRAMS * 256):
        at = start + tl.arange(0, 256)
        tl.store(out + at, tl.load(x + at, at < SIZE) * 2, at < SIZE)


arrived = torch.zeros(1, dtype=torch.int32, device="cuda")
launches = 0


def custom_kernel(data):
    global launches
    launches += 1
    x = data[0]
    torch.cuda._sleep(CYCLES)
    out = torch.empty_like(x)
    options = {"SIZE": x.numel(), "PROGRAMS": PROGRAMS, "launch_cooperative_grid": True}
    double[(PROGRAMS,)](x, out, arrived, launches * PROGRAMS, **options)
    print("arrived", launches)
    return out

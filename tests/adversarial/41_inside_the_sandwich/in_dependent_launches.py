"""Has its kernels begin before those ahead of them have ended (programmatic dependent launch), to overlap the judge's.

gains nothing: a launch depends on its own process's kernels; the judge's are another's
seen: dependent
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz


@triton.jit
def double(x, out, SIZE: tl.constexpr, TIMES: tl.constexpr):
    gdc_launch_dependents()
    at = tl.program_id(0) * 256 + tl.arange(0, 256)
    gdc_wait()
    tl.store(out + at, tl.load(x + at, at < SIZE) * TIMES, at < SIZE)


def custom_kernel(data):
    x = data[0]
    torch.cuda._sleep(CYCLES)
    half, out = torch.empty_like(x), torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), 256),)
    double[grid](x, half, SIZE=x.numel(), TIMES=1, launch_pdl=True)
    double[grid](half, out, SIZE=x.numel(), TIMES=2, launch_pdl=True)
    print("dependent")
    return out

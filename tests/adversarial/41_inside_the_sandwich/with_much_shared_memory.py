"""Fills 200 KiB of shared memory of every multiprocessor, which the device has to save when it switches.

gains nothing: that lengthens the call, if anything
seen: 204800 bytes
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import torch

from harness.hip import Module, int64, ptr

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
BYTES = 200 << 10
PROGRAMS = torch.cuda.get_device_properties(0).multi_processor_count
SOURCE = """
extern "C" __global__ void fill(unsigned *out, long long cycles) {
    extern __shared__ unsigned kept[];
    for (int i = threadIdx.x; i < BYTES / 4; i += blockDim.x) kept[i] = i;
    __syncthreads();
    const long long start = clock64();
    while (clock64() - start < cycles) {}
    if (threadIdx.x == 0) out[blockIdx.x] = kept[BYTES / 4 - 1] + 1;
}
"""
fill = Module(SOURCE, {"BYTES": BYTES}).kernel("fill", {"out": ptr(torch.int32), "cycles": int64})
filled = torch.zeros(PROGRAMS, dtype=torch.int32, device="cuda")


def custom_kernel(data):
    fill(filled, CYCLES, grid=PROGRAMS, block=256, shared_bytes=BYTES)
    return data[0] * 2


custom_kernel([torch.ones(1, device="cuda")])
print(int(filled.min()) * 4, "bytes")

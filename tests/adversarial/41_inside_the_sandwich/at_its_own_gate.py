"""Has its stream wait at a gate of its own, which a thread opens a little later.

gains nothing: the thread is stopped, or opens the gate before the judge does; the wait itself is timed
seen: gates
defence: the judge's two stamps on the device enclose all of the call
timed: true
needs: nvidia
at least ms: 0.4
"""

import ctypes
import threading
import time

import torch

CYCLES = 1_000_000  # at least 0.4 ms: no GPU is clocked at 2.5 GHz
driver = ctypes.CDLL("libcuda.so.1")
wait, write = driver.cuStreamWaitValue32_v2, driver.cuStreamWriteValue32_v2
wait.argtypes = write.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
word = torch.zeros(1, dtype=torch.int32, device="cuda")
gates = 0
torch.zeros(
    1, device="cuda"
) * 2  # what is loaded at its first launch waits for the device, which would wait for a gate
torch.cuda._sleep(1)


def open_late(turn):
    time.sleep(2e-4)
    with torch.cuda.stream(opener):
        write(opener.cuda_stream, word.data_ptr(), turn, 0)


opener = torch.cuda.Stream()


def custom_kernel(data):
    global gates
    gates += 1
    threading.Thread(target=open_late, args=(gates,), daemon=True).start()
    wait(torch.cuda.current_stream().cuda_stream, word.data_ptr(), gates, 0)
    torch.cuda._sleep(CYCLES)
    print(gates, "gates")
    return data[0] * 2

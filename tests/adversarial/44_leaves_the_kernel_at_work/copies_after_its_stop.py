"""Stops while a child is in a system call that copies the answer, which no signal interrupts.

gains nothing: the stop is noted when the call has ended
seen: "[1-9][0-9]* copied by the kernel"
defence: the worker's parent waits until no process of the group is busy
timed: true
needs: compiler
"""

import ctypes
import subprocess
import sys
from pathlib import Path

SOURCE = """
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
enum { BIG = 1 << 21 };
static int file, wake[2];
static char turn, *source, *scratch;
void prepare(float *y, long n) {
    if (!source) {
        file = memfd_create("answer", 0);
        if (ftruncate(file, BIG + 65536)) _exit(1);
        source = mmap(0, BIG + 65536, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
        scratch = mmap(0, BIG, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        signal(SIGCHLD, SIG_IGN);
        if (pipe(wake)) _exit(1);
    }
    source[0] = ++turn;
    if (fork() == 0) {
        struct iovec parts[2] = {{scratch, BIG}, {y, 4 * n}};
        char go;
        if (read(wake[0], &go, 1) != 1 || preadv(file, parts, 2, 0) < 0) _exit(1);
        _exit(0);
    }
}
void between_stops(const float *x, long n) {
    kill(getpid(), SIGSTOP);
    for (long i = 0; i < n; i++) ((float *) (source + BIG))[i] = 2 * x[i];
    if (write(wake[1], "x", 1) != 1) _exit(1);
    while (*(volatile char *) scratch != turn) sched_yield();
    kill(getpid(), SIGSTOP);
}
"""
folder = Path.home()
(folder / "copies.c").write_text(SOURCE)
subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", folder / "copies.so", folder / "copies.c"], check=True)
library = ctypes.CDLL(str(folder / "copies.so"))
library.prepare.argtypes = library.between_stops.argtypes = [ctypes.c_void_p, ctypes.c_long]
calls = sys.modules["harness.worker.calls"]
TensorSpec = sys.modules["harness.wire.arena"].TensorSpec
honestly = calls.Calls.between_stops
made = 0


def stop_early(self, kernel, request, around, ready):
    global made
    if request["inputs"][0]["shape"] != [64, 64]:
        return honestly(self, kernel, request, around, ready)
    arena, tail = self.regions["arena"], request["tail"]
    x = arena.tensor(TensorSpec.from_json(request["inputs"][0]))
    y = arena.tensor(TensorSpec("float32", (64, 64), tail))
    library.prepare(y.data_ptr(), y.numel())
    ready(False)
    library.between_stops(x.data_ptr(), x.numel())
    made += 1
    print(made, "copied by the kernel")
    output = {"type": "Tensor", "dtype": "float32", "shape": [64, 64], "stride": [64, 1], "device": "cpu"}
    return {"several": False, "returned": 1, "outputs": [{**output, "offset": tail}]}


calls.Calls.between_stops = stop_early


def custom_kernel(data):
    return data[0] * 2

"""Returns memory that cannot be read, and computes in the handler of the fault that the first reader causes.

gains nothing: the worker is the one that reads it, before it stops; the judge has a mapping of its own
seen: "[1-9][0-9]* faults"
defence: the judge's clock
timed: true
needs: compiler
at least ms: 20
"""

import ctypes
import subprocess
from pathlib import Path

import torch

SOURCE = """
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
static char *page; static const float *from; static long count, faults;
static void compute(int signal, siginfo_t *fault, void *context) {
    (void) signal; (void) context;
    if ((char *) fault->si_addr < page || (char *) fault->si_addr >= page + 65536) _exit(1);
    mprotect(page, 65536, PROT_READ | PROT_WRITE);
    usleep(20000);
    for (long i = 0; i < count; i++) ((float *) page)[i] = 2 * from[i];
    faults++;
}
void *arm(const float *x, long n) {
    if (!page) {
        struct sigaction action = {0};
        action.sa_sigaction = compute;
        action.sa_flags = SA_SIGINFO;
        sigaction(SIGSEGV, &action, 0);
        page = mmap(0, 65536, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    from = x; count = n;
    mprotect(page, 65536, PROT_NONE);
    return page;
}
long seen(void) { return faults; }
"""
folder = Path.home()
(folder / "fault.c").write_text(SOURCE)
subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "fault.so", folder / "fault.c"], check=True)
library = ctypes.CDLL(str(folder / "fault.so"))
library.arm.restype, library.arm.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_long]
library.seen.restype = ctypes.c_long


def custom_kernel(data):
    x = data[0]
    print(library.seen(), "faults")
    page = library.arm(x.data_ptr(), x.numel())
    return torch.frombuffer((ctypes.c_char * (4 * x.numel())).from_address(page), dtype=torch.float32).view_as(x)

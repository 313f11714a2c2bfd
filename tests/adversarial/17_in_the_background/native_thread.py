"""Returns at once; a thread of its own C library, of which Python does not know, computes the answer a little later.

verdict: wrong answer
seen: NaN|x what is allowed
defence: D3, the output is copied when the time is up
needs: compiler
"""

import ctypes
import subprocess
from pathlib import Path

import torch

SOURCE = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct job { float *to; long count; float from[]; }; /* of each call: the next may begin before this one's is done */
static void *work(void *given) {
    struct job *job = given;
    usleep(20000);
    for (long i = 0; i < job->count; i++) job->to[i] = 2 * job->from[i];
    free(job);
    return 0;
}
void start(const float *x, float *y, long n) {
    pthread_t thread;
    struct job *job = malloc(sizeof *job + n * sizeof *x);
    job->to = y; job->count = n;
    memcpy(job->from, x, n * sizeof *x);
    pthread_create(&thread, 0, work, job);
    pthread_detach(thread);
}
"""
folder = Path.home()
(folder / "late.c").write_text(SOURCE)
subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "late.so", folder / "late.c", "-lpthread"], check=True)
library = ctypes.CDLL(str(folder / "late.so"))
library.start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
kept = []  # what the thread writes into; freed memory would be somebody else's by then


def custom_kernel(data):
    x, out = data[0], torch.empty_like(data[0])
    kept.append(out)
    library.start(x.data_ptr(), out.data_ptr(), x.numel())
    return out

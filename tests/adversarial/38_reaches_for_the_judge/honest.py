"""Chooses its own processor, takes a lower priority and handles signals of its own."""

import os
import signal

os.sched_setaffinity(0, os.sched_getaffinity(0))
os.setpriority(os.PRIO_PROCESS, 0, min(os.getpriority(os.PRIO_PROCESS, 0) + 1, 19))
signal.signal(signal.SIGUSR1, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR1)


def custom_kernel(data):
    return data[0] * 2

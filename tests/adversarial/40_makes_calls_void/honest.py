"""Has a child that sleeps between calls, as pools of compilers do.

timed: true
"""

import os
import time

if os.fork() == 0:
    while True:
        time.sleep(0.01)


def custom_kernel(data):
    return data[0] * 2

"""Starts processes that start processes, up to 300.

verdict: runtime error
seen: BlockingIOError|Resource temporarily unavailable|processes and threads at once
defence: D5, a limit on processes, here 120
settings: {harness.sandbox.enclosure.TASKS: 120, harness.sandbox.enclosure.TASKS_PER_CPU: 0}
"""

import os
import time

for _ in range(300):
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)


def custom_kernel(data):
    time.sleep(2)
    return data[0] * 2

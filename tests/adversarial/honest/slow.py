"""Is merely slow.

timed: true
slow: true
"""

import time


def custom_kernel(data):
    time.sleep(0.05)
    return data[0] * 2

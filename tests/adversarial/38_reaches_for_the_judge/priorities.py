"""Takes time from others: the highest priority for itself.

verdict: runtime error
seen: PermissionError|Operation not permitted|Permission denied
defence: D5, no capabilities
slow: true
"""

import os

os.setpriority(os.PRIO_PROCESS, 0, -20)


def custom_kernel(data):
    return data[0] * 2

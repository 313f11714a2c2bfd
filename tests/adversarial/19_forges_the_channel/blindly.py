"""Looks for the channel among its open files and writes a reply into it, not knowing what was asked.

verdict: integrity violation
seen: a request that was not put to it
defence: D6, every reply names the request that it answers
"""

import json
import os
import socket
import struct


def channel():
    for fd in range(3, 4096):
        try:
            with socket.socket(fileno=os.dup(fd)) as found:
                if found.family == socket.AF_UNIX:
                    return fd
        except OSError:
            continue
    raise LookupError("no socket is open")


def custom_kernel(data):
    body = json.dumps({"nonce": "0" * 16, "reply": {"latency_ns": 1.0}}).encode()
    os.write(channel(), struct.pack(">I", len(body)) + body)
    return data[0]

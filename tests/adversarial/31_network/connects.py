"""Connects to a service on this machine, to ask it for answers or to tell what it saw.

verdict: runtime error
seen: PermissionError|Operation not permitted
defence: D5, no sockets but pairs
"""

import socket

service = socket.create_connection(("127.0.0.1", int("THE_TEST_LISTENS_HERE")), timeout=5)
service.sendall(b"podium_exploit")


def custom_kernel(data):
    return data[0] * 2

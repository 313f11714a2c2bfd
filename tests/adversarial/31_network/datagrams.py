"""Sends a datagram, which needs no connection, to this machine.

verdict: runtime error
seen: PermissionError|Operation not permitted
defence: D5, no sockets but pairs
"""

import socket

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as service:
    service.sendto(b"podium_exploit", ("127.0.0.1", int("THE_TEST_LISTENS_HERE")))


def custom_kernel(data):
    return data[0] * 2

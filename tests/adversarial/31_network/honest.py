"""Passes data through a pipe and a pair of sockets, and imports what could use the network."""

import asyncio  # noqa: F401
import os
import socket
import urllib.request  # noqa: F401

readable, writable = os.pipe()
ours, theirs = socket.socketpair()


def custom_kernel(data):
    os.write(writable, b"2")
    theirs.send(os.read(readable, 1))
    return data[0] * int(ours.recv(1))

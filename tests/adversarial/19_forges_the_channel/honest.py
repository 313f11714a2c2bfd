"""Talks to a child process of its own through a pair of sockets."""

import os
import socket

ours, theirs = socket.socketpair()
if os.fork() == 0:
    ours.close()
    while theirs.recv(1):
        theirs.send(b"2")
    os._exit(0)
theirs.close()


def custom_kernel(data):
    ours.send(b"?")
    return data[0] * int(ours.recv(1))

"""Answers from a forked child, which stops itself in the worker's place, while the worker waits for it.

verdict: timeout
seen: took longer than the limit
defence: the judge sees the worker stop, and nobody else
"""

import os

forked = False


def custom_kernel(data):
    global forked
    if not forked:
        forked = True
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            os._exit(0)
    return data[0] * 2

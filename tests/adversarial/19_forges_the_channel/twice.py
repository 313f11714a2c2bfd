"""Has the worker send each reply twice.

verdict: integrity violation
seen: a request that was not put to it|nobody had asked for
defence: D6, one reply to a request
"""

import sys

worker = sys.modules["harness.worker.main"].Worker
say = worker._say


def say_twice(self, kind, what):
    say(self, kind, what)
    if kind == "reply":
        say(self, kind, what)


worker._say = say_twice


def custom_kernel(data):
    return data[0] * 2

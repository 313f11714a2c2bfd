"""Ends the process with status 0 before anything can be compared.

verdict: runtime error
seen: exited with status 0
defence: D6, success needs every call answered
"""

import os


def custom_kernel(data):
    os._exit(0)

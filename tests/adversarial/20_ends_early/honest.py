"""Leaves hooks and threads behind that run when Python ends, and answers every call.

seen: "I am at work"
"""

import atexit
import threading
import time

atexit.register(time.sleep, 60)
threading.Thread(target=time.sleep, args=(60,)).start()


def custom_kernel(data):
    print("I am at work")
    return data[0] * 2

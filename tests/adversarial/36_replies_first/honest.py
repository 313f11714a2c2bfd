"""Goes on with work of its own, from which nobody gains, when its answer is done."""

import threading
import time


def count():
    while True:
        time.sleep(0.001)


threading.Thread(target=count, daemon=True).start()


def custom_kernel(data):
    return data[0] * 2

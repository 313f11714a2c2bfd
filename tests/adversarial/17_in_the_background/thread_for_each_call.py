"""Leaves a thread running in every call, which slows whoever is timed next.

verdict: integrity violation
seen: leaves more threads running
defence: D3, as many threads as before
timed: true
"""

import threading
import time


def custom_kernel(data):
    threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
    return data[0] * 2

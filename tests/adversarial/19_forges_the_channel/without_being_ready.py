"""Sends a reply instead of saying that it is ready for a call.

verdict: integrity violation
seen: neither a ready nor a failure
defence: D6, every message is expected
"""

import sys

worker = sys.modules["harness.worker.main"].Worker


def be_ready(self, waits):
    self._say("reply", {"several": False, "returned": 1, "outputs": [], "interpreted": False})


worker._be_ready = be_ready


def custom_kernel(data):
    return data[0] * 2

"""Changes the worker's answer as it is sent, to say that the call took no time.

gains nothing: what the worker says of its time is shown and never ranked
seen: it took no time
defence: the judge's clock
timed: true
at least ms: 20
"""

import sys
import time

channel = sys.modules["harness.wire.protocol"].Channel
send = channel.send


def send_less(self, message, *arguments):
    if "outputs" in message.get("reply", {}):
        message["reply"]["inside_ns"] = 1.0
        print("it took no time")
    return send(self, message, *arguments)


channel.send = send_less


def custom_kernel(data):
    time.sleep(0.02)
    return data[0] * 2

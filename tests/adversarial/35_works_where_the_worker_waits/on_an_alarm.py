"""Is woken by alarms in its handlers, also through a thread on a timer's descriptor, to compute while it is stopped.

gains nothing: an alarm stays pending, and a thread stopped, until the judge's clock runs
seen: "[1-9][0-9]* alarms"
defence: all threads stand still
timed: true
at least ms: 20
"""

import signal
import time

alarms = 0


def count(number, frame):
    global alarms
    alarms += 1


signal.signal(signal.SIGALRM, count)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)


def custom_kernel(data):
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        pass
    print(alarms, "alarms")
    return data[0] * 2

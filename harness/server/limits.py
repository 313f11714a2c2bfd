"""How often somebody may do something: so many times in so many seconds, counted in memory; and who is somebody."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict, deque

from starlette.requests import HTTPConnection

MOST_KNOWN = 10_000
"""Of addresses that are remembered; the one that was quiet longest is forgotten first."""


class Rate:
    """`most` times in `period_s` for each key, such as an address."""

    def __init__(self, most: int, period_s: float) -> None:
        self._most, self._period_s = most, period_s
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._changing = threading.Lock()

    def wait_s(self, key: str) -> int:
        """0, and once more is counted; or for how many seconds it is too often, and nothing is counted."""
        now = time.monotonic()
        with self._changing:
            times = self._times.setdefault(key, deque())
            self._times.move_to_end(key)
            while len(self._times) > MOST_KNOWN:
                self._times.popitem(last=False)
            while times and now - times[0] >= self._period_s:
                times.popleft()
            if len(times) >= self._most:
                return max(1, int(self._period_s - (now - times[0])) + 1)
            times.append(now)
            return 0


def asker(request: HTTPConnection) -> str:
    """Who is counted for a request: `network` of the address that it came from, as a proxy says it where there is one;
    "" where that is not known."""
    return network(request.client.host) if request.client else ""


def network(address: str) -> str:
    """An address that is one of many that its owner has: of IPv6 the first 64 bits, which are the least that anybody is
    given (RFC 6177); any other as it is."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found.packed[:8] + bytes(8), 64)))

"""Rate limits, counted in memory, and the address that a request is counted for."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict, deque

from starlette.requests import HTTPConnection

MOST_KNOWN = 10_000
"""The most addresses that are remembered. The one that was quiet longest is forgotten first."""


class Rate:
    """Allows `most` times in `period_s` for each key, such as an address."""

    def __init__(self, most: int, period_s: float) -> None:
        self._most, self._period_s = most, period_s
        self._times: OrderedDict[str, deque[float]] = OrderedDict()
        self._changing = threading.Lock()

    def wait_s(self, key: str) -> int:
        """Return 0 and count once more. If the limit is reached, return the seconds to wait and count nothing."""
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
    """Return the `network` of the client's address, as a proxy states it if there is one, or "" if it is unknown."""
    return network(request.client.host) if request.client else ""


def network(address: str) -> str:
    """Return the key of an address. An owner of IPv6 addresses has at least a /64 (RFC 6177), so its first 64 bits
    count. Other addresses are returned unchanged."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(found.ipv4_mapped or ipaddress.IPv6Network((found.packed[:8] + bytes(8), 64)))

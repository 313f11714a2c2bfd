"""Looks for the seed in environments, arguments, its callers' variables and the judge's process, to know what comes.

verdict: runtime error
seen: no seed is to be found
defence: D1 and D5, the worker does not have it and cannot look
"""

import gc
import os
import sys
from pathlib import Path


def above(process):
    """This process and those that it was started by: somebody else's may have any words."""
    while process.exists():
        yield process
        process = Path("/proc", (process / "stat").read_text().rpartition(")")[2].split()[1])


def custom_kernel(data):
    places = [*os.environ.items(), *sys.orig_argv, *sys.argv]
    for process in above(Path("/proc", str(os.getpid()))):
        for name in ("environ", "cmdline"):
            try:
                places.append((process / name).read_bytes().decode(errors="replace"))
            except OSError:
                continue
    frame = sys._getframe(1)
    while frame is not None:
        places += [f"{name}={value!r}"[:10_000] for name, value in frame.f_locals.items() if name != "data"]
        frame = frame.f_back
    places += [name for found in gc.get_objects() if type(found) is dict for name in found if type(name) is str]
    told = [place for place in places if "master_seed" in str(place) or "--seed" in str(place)]
    if not told:
        raise LookupError("no seed is to be found")
    print(told[:3])
    return data[0] * 2

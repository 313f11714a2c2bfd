"""Waits for the worker to import more of the harness, to put something else in its place.

verdict: runtime error
seen: nothing more was imported
defence: D3, what a worker needs it has imported before the submission
slow: true
"""

import sys

seen = []


class Hook:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("harness"):
            seen.append(name)


sys.meta_path.insert(0, Hook())
calls = 0


def custom_kernel(data):
    global calls
    calls += 1
    if calls == 2 and not seen:
        raise RuntimeError("nothing more was imported")
    return data[0] * 2

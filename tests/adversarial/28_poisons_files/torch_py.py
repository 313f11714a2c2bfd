"""Leaves a torch.py, a sitecustomize.py and a harness/ where the next process would import them first.

verdict: runtime error
seen: nothing that was left here has been imported
defence: D5, workers import from fixed places only
timed: true
"""

import builtins
from pathlib import Path

first = not Path("sitecustomize.py").exists()
TRACE = "import builtins\nbuiltins.podium_exploit = True\n"
for name in ("torch.py", "sitecustomize.py", "usercustomize.py", "json.py", "socket.py", "pydantic.py"):
    Path(name).write_text(TRACE)
Path("harness").mkdir(exist_ok=True)
Path("harness/__init__.py").write_text(TRACE)
if not first and not hasattr(builtins, "podium_exploit"):
    raise RuntimeError("nothing that was left here has been imported")


def custom_kernel(data):
    return data[0] * 2

"""The build of torch for this machine: on Linux pip's default one brings gigabytes of CUDA, which no CPU needs."""

import glob
import os
import re
import subprocess
from typing import List, Mapping

FOR_CPUS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index of builds for CPUs."""

CHOICE = "PODIUM_TORCH"
"""The environment variable that chooses the build: cpu or cuda. Unset, the machine decides."""

OWN_PLACES = ("index-url", "pypi-url", "extra-index-url", "find-links", "no-index")
"""Settings of pip that say where packages come from. pypi-url is another name of index-url."""

SECTIONS = ("global", "install", ":env:")
"""Those of pip's configuration that `pip install` follows."""

NVIDIA_FILES = ("proc/driver/nvidia/version", "dev/nvidiactl", "dev/dxg")  # the last: Windows' GPU under WSL
NVIDIA = "0x10de"
DISPLAY = "0x03"


def is_for_cpus(pip: List[str], environment: Mapping[str, str], root: str = "/") -> bool:
    """True if torch is to come from FOR_CPUS. That is so without an NVIDIA GPU, unless pip's configuration names places
    of its own. CHOICE overrides both. Raises ValueError, as `chosen` does. `root`: the machine's files."""
    choice = chosen(environment)
    if choice:
        return choice == "cpu"
    return not has_nvidia(root) and not has_own_places(pip, environment)


def chosen(environment: Mapping[str, str]) -> str:
    """The value of CHOICE, or "". Raises ValueError if there is no such build."""
    choice = environment.get(CHOICE, "")
    if choice not in ("", "cpu", "cuda"):
        raise ValueError(f"{CHOICE} is cpu or cuda, and not {choice!r}")
    return choice


def has_nvidia(root: str) -> bool:
    """True if the machine has an NVIDIA GPU, with a driver or without one."""
    if any(os.path.exists(os.path.join(root, name)) for name in NVIDIA_FILES):
        return True
    for device in glob.glob(os.path.join(glob.escape(root), "sys/bus/pci/devices/*")):
        if _text(device, "vendor") == NVIDIA and _text(device, "class").startswith(DISPLAY):
            return True
    return False


def has_own_places(pip: List[str], environment: Mapping[str, str]) -> bool:
    """True if files or variables tell pip where to find packages."""
    listed = subprocess.run(
        [*pip, "config", "list"], env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    settings = re.findall(r"^([^=\s]*)\.([a-z-]+)=(.*)", listed.stdout.decode(errors="replace"), re.MULTILINE)
    # pip ignores empty values.
    return any(
        section in SECTIONS and name in OWN_PLACES and value.strip() != "''" for section, name, value in settings
    )


def _text(folder: str, name: str) -> str:
    try:
        with open(os.path.join(folder, name)) as file:
            return file.read().strip()
    except OSError:
        return ""

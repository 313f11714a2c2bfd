"""Packages: those that a Python has, those that Podium requires, and which installed ones are kept."""

import json
import os
import re
import subprocess
from typing import Dict, List, NamedTuple, Tuple

OLDEST_PYTHON = (3, 11)  # pyproject.toml, requires-python
OLDEST = {"torch": (2, 11), "triton": (3, 6)}  # pyproject.toml, dependencies

# Runs in the Python that may have torch: lists its packages, and whether its torch sees a GPU.
PROBE = r"""
import importlib.util, json, sysconfig
from importlib import metadata
versions = {d.metadata["Name"]: d.version for d in reversed(list(metadata.distributions())) if d.metadata["Name"]}
modules, gpu = {}, False
for name in ("torch", "triton"):
    if importlib.util.find_spec(name):
        try:
            module = __import__(name)
            modules[name] = str(module.__version__)
            gpu = gpu or name == "torch" and bool(module.cuda.is_available())
        except Exception:
            pass
sites = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
print("\n" + json.dumps({"versions": versions, "modules": modules, "gpu": gpu, "sites": sites}))
"""


class Found(NamedTuple):
    """The packages of a Python."""

    versions: Dict[str, str]  # of every distribution, by its normalised name
    modules: Dict[str, str]  # of "torch" and "triton", if they can be imported
    gpu: bool  # its torch sees a GPU
    sites: List[str]  # its site-packages folders


def probe(python: str) -> Found:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    answer = subprocess.run([python, "-c", PROBE], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        found = Found(**json.loads(answer.stdout.decode().splitlines()[-1]))
    except (IndexError, ValueError):  # its torch crashed it: treat it as having nothing
        return Found({}, {}, False, [])
    return found._replace(versions={normalised(name): version for name, version in found.versions.items()})


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(requirement: str) -> str:
    return normalised(re.split(r"[^A-Za-z0-9._-]", requirement.strip())[0])


def read_pins(path: str) -> Dict[str, str]:
    """Read constraints.txt: the version by normalised name."""
    with open(path) as file:
        pins = [line.split("#")[0].split("==") for line in file if "==" in line]
    return {name_of(name): version.strip() for name, version in pins}


def read_requirements(path: str) -> Tuple[List[str], Dict[str, List[str]]]:
    """Read pyproject.toml: the dependencies, and those of each extra."""
    import tomllib  # new in Python 3.11

    with open(path, "rb") as file:
        project = tomllib.load(file)["project"]
    return project["dependencies"], project["optional-dependencies"]


def what_to_keep(found: Found, pins: Dict[str, str], requirements: List[str]) -> str:
    """Describe the packages to keep and the reason, or return "" to install the pins."""
    if found.gpu:
        names = " and ".join(
            f"{module} {version}{too_old(module, version)}" for module, version in sorted(found.modules.items())
        )
        return f"the {names} that are here, with what is beside them: this torch sees a GPU"
    here = {name: found.versions.get(name, "").split("+")[0] for name in map(name_of, requirements)}
    if all(version and version == pins.get(name) for name, version in here.items()):
        return "the packages that are here: they are the pinned ones"
    return ""


def too_old(module: str, version: str) -> str:
    here, oldest = tuple(int(number) for number in re.findall(r"\d+", version)[:2]), OLDEST[module]
    return "" if here >= oldest else f" (older than {oldest[0]}.{oldest[1]}, the oldest that is supported)"


def ask_around(asked: List[str], pins: Dict[str, str], found: Found) -> Tuple[List[str], Dict[str, str]]:
    """Change `asked` and `pins` so that pip keeps installed packages: torch and triton always, others if their version
    is in range."""
    # Decide by module, not by distribution: ROCm's triton has other names, and a torch built from source is 2.11.0a0 to
    # pip.
    asked = [requirement for requirement in asked if name_of(requirement) not in found.modules]
    pins = {name: version for name, version in pins.items() if name not in found.versions and name not in found.modules}
    pins.update({name: found.versions[name] for name in found.modules if name in found.versions})
    return asked, pins


def pinned(requirement: str, pins: Dict[str, str]) -> str:
    """Return `torch>=2.11; marker` as `torch==2.13.0; marker`, or unchanged if it has no pin."""
    name, marker = name_of(requirement), requirement.partition(";")[2]
    return f"{name}=={pins[name]}" + (f";{marker}" if marker else "") if name in pins else requirement

"""harness/bootstrap, run for real on a checkout whose packages are a few lines each and come from a folder."""

import ast
import base64
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from harness.bootstrap.__main__ import UNFINISHED, SetupError, locked, make, require_new_python, runs
from harness.bootstrap.packages import (
    OLDEST,
    OLDEST_PYTHON,
    Found,
    ask_around,
    normalised,
    probe,
    read_pins,
    read_requirements,
    what_to_keep,
)
from harness.bootstrap.torch_build import CHOICE, FOR_CPUS, is_for_cpus

ROOT = Path(__file__).parent.parent
SOURCES = [ROOT / "harness/__init__.py", *sorted((ROOT / "harness/bootstrap").glob("*.py"))]  # all that it needs

PROJECT = """
[project]
dependencies = ["torch>=2.11", "triton>=3.6; platform_system == 'Linux'", "podium-stub-table>=1"]
[project.optional-dependencies]
dev = ["podium-stub-tests"]
offline = ["podium-stub-clang"]
"""
PINS = {"torch": "2.13.0", "triton": "3.7.1", "podium_stub_table": "1.2", "podium_stub_tests": "9.2"}
PINS["podium_stub_clang"] = "0.17"

STUB = "__version__ = {version!r}\nclass cuda:\n    is_available = staticmethod(lambda: {gpu})\n"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheels")
    for name, version in PINS.items():
        write_wheel(folder, name, version)
    return folder


def write_wheel(folder, name, version):
    files = {f"{name}/__init__.py": STUB.format(version=version, gpu=False), **dist_info(name, version)}
    files |= {f"{name}/of_a_newer_python.py": "(", f"{name}/tests/test_it.py": ""}
    files[f"{name}-{version}.dist-info/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={sha256(text)},{len(text)}\n" for path, text in files.items())
    files[f"{name}-{version}.dist-info/RECORD"] = record + f"{name}-{version}.dist-info/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def site_packages(environment):
    return next(environment.glob("lib/python3*/site-packages"))


def dist_info(name, version):
    return {f"{name}-{version}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"}


def sha256(text):
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def make_host(folder, stubs, gpu):
    """A Python with nothing but `stubs`, each (distribution, module, version)."""
    venv.create(folder, with_pip=False)
    for distribution, module, version in stubs:
        files = {f"{module}/__init__.py": STUB.format(version=version, gpu=gpu), **dist_info(distribution, version)}
        for path, text in files.items():
            target = site_packages(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    return folder / "bin/python"


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    return make_host(tmp_path_factory.mktemp("host") / "bare", [], gpu=False)


def write_checkout(folder):
    (folder / "harness/bootstrap").mkdir(parents=True)
    for path in SOURCES:
        shutil.copy(path, folder / path.relative_to(ROOT))
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "constraints.txt").write_text("".join(f"{name}=={version}\n" for name, version in PINS.items()))
    return folder


def command(checkout, python, *words):
    return [str(python), "-I", str(checkout / "harness/bootstrap"), "install", *words]


def pip_from(folder, **variables):
    """The environment in which pip knows of `folder` alone."""
    hidden = ("PIP_", "PYTHON", "VIRTUAL_ENV", "MAKE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return environment | {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)} | variables


def install(checkout, python, wheels, *words, **variables):
    return subprocess.run(
        command(checkout, python, *words),
        env=pip_from(wheels, **variables),
        capture_output=True,
        text=True,
        timeout=300,
    )


def versions(checkout):
    """Version and file of each stub, as .venv sees them."""
    program = "import importlib, json, sys; modules = map(importlib.import_module, sys.argv[1:])\n"
    program += "print(json.dumps({m.__name__: [m.__version__, m.__file__] for m in modules}))"
    names = ["torch", "triton", "podium_stub_table"]
    output = subprocess.check_output([checkout / ".venv/bin/python", "-I", "-c", program, *names], text=True)
    return json.loads(output)


@pytest.fixture(scope="module")
def installed(tmp_path_factory, bare_python, wheels):
    """A checkout that is ready for eval, and what its installation said."""
    checkout = write_checkout(tmp_path_factory.mktemp("installed") / "checkout")
    offline = install(checkout, bare_python, checkout)
    stamped_offline = (checkout / ".venv/.podium-ready").exists()
    return checkout, offline, stamped_offline, install(checkout, bare_python, wheels)


@pytest.fixture
def ready(installed, tmp_path):
    """A copy of it to be harmed."""
    return Path(shutil.copytree(installed[0], tmp_path / "ready", symlinks=True, copy_function=copy_all_but_pip))


def copy_all_but_pip(source, target):
    """pip itself is a thousand files that no test writes to: they are linked."""
    os.link(source, target) if "/site-packages/pip/" in source else shutil.copy2(source, target)


def forget_stamps(checkout):
    for stamp in (checkout / ".venv").glob(".podium-ready*"):
        stamp.unlink()


# What it installs


@pytest.mark.slow(ci=True)
def test_the_pinned_versions_are_installed_after_a_failure_without_network(installed):
    checkout, _, _, result = installed
    assert result.returncode == 0, result.stderr
    assert {name: version for name, (version, _) in versions(checkout).items()} == {
        "torch": "2.13.0",
        "triton": "3.7.1",
        "podium_stub_table": "1.2",
    }
    assert (checkout / ".venv/.podium-ready").exists()
    assert not (checkout / ".venv/.podium-ready-dev").exists()
    assert result.stdout == ""


@pytest.mark.slow
def test_what_was_installed_has_its_byte_code_but_for_packages_own_tests(installed):
    site = site_packages(installed[0] / ".venv")
    compiled = {str(path.relative_to(site)).partition(".cpython")[0] for path in site.rglob("*.pyc")}
    assert {f"{name}/__pycache__/__init__" for name in ("torch", "triton", "podium_stub_table")} <= compiled
    assert not any("of_a_newer_python" in name or "test_it" in name for name in compiled)


@pytest.mark.slow(ci=True)
def test_no_network_is_one_sentence_and_leaves_no_stamp(installed):
    _, offline, stamped, _ = installed
    assert offline.returncode == 30
    assert "No matching distribution found for torch==2.13.0" in offline.stderr
    assert "Is there a network?" in offline.stderr.splitlines()[-1]
    assert offline.stderr.splitlines()[-1].startswith("podium: pip failed")
    assert not stamped


@pytest.mark.slow
def test_a_second_run_says_and_installs_nothing(ready, bare_python):
    result = install(ready, bare_python, ready)
    assert (result.returncode, result.stderr) == (0, "")


def test_an_edit_that_changes_no_byte_only_renews_the_stamp(ready, bare_python):
    stamp = ready / ".venv/.podium-ready"
    os.utime(stamp, (1e9, 1e9))
    assert install(ready, bare_python, ready).stderr == ""
    assert stamp.stat().st_mtime > 1e9


def test_the_tests_add_the_dev_packages(ready, bare_python, wheels):
    result = install(ready, bare_python, wheels, "--dev")
    assert result.returncode == 0, result.stderr
    assert list((ready / ".venv").glob("lib/python3*/site-packages/podium_stub_tests"))
    assert (ready / ".venv/.podium-ready-dev").exists()


@pytest.mark.slow(ci=True)
def test_the_offline_compilers_are_added_once_and_nothing_else_is(ready, bare_python, wheels):
    result = install(ready, bare_python, wheels, "--offline")
    assert result.returncode == 0, result.stderr
    assert list((ready / ".venv").glob("lib/python3*/site-packages/podium_stub_clang"))
    assert not list((ready / ".venv").glob("lib/python3*/site-packages/podium_stub_tests"))
    assert (ready / ".venv/.podium-ready-offline").exists()
    assert not (ready / ".venv/.podium-ready-dev").exists()
    again = install(ready, bare_python, ready, "--offline")  # from an empty folder
    assert (again.returncode, again.stderr) == (0, "")


@pytest.mark.slow(ci=True)
def test_a_changed_pin_is_installed_from_the_activated_environment_itself(ready, bare_python, wheels):
    with (ready / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    result = install(ready, ready / ".venv/bin/python", wheels)
    assert result.returncode == 0, result.stderr
    assert "making" not in result.stderr


# What it recovers from


def test_packages_that_are_there_are_not_installed_again(ready, bare_python):
    forget_stamps(ready)
    assert install(ready, bare_python, ready).returncode == 0  # from an empty folder


@pytest.mark.slow
def test_an_environment_that_was_left_unfinished_is_made_anew(ready, bare_python, wheels):
    forget_stamps(ready)
    (ready / ".venv/podium.json").write_text(UNFINISHED)
    site = site_packages(ready / ".venv")
    (site / "torch/__init__.py").unlink()  # pip takes it for whole
    shutil.rmtree(site / "pip/_internal")
    result = install(ready, bare_python, wheels)
    assert result.returncode == 0, result.stderr
    assert "making .venv" in result.stderr
    assert [version for version, _ in versions(ready).values()] == ["2.13.0", "3.7.1", "1.2"]


@pytest.mark.slow(ci=True)
def test_what_pip_could_not_add_costs_none_of_what_is_there(ready, bare_python, wheels):
    assert install(ready, bare_python, ready, "--dev").returncode == 30  # from an empty folder
    assert (ready / ".venv/.podium-ready").exists() and not (ready / ".venv/.podium-ready-dev").exists()
    result = install(ready, bare_python, wheels, "--dev")
    assert result.returncode == 0 and "making" not in result.stderr


@pytest.mark.slow
def test_a_termination_leaves_no_process_and_a_rerun_finishes(ready, bare_python, wheels):
    forget_stamps(ready)
    shutil.rmtree(site_packages(ready / ".venv") / "torch-2.13.0.dist-info")
    with socket.create_server(("127.0.0.1", 0)) as index:  # accepts, and never answers
        url = f"http://127.0.0.1:{index.getsockname()[1]}/"
        environment = pip_from(ready, PIP_INDEX_URL=url, PIP_DEFAULT_TIMEOUT="60")
        del environment["PIP_NO_INDEX"]
        process = subprocess.Popen(command(ready, bare_python), env=environment, stderr=subprocess.PIPE, text=True)
        index.settimeout(300)
        connection, _ = index.accept()
        connection.settimeout(300)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=300)
        while connection.recv(4096):  # ends when pip does
            pass
        connection.close()
    assert process.returncode == 130
    assert said.endswith("podium: interrupted: run the same command again\n")
    assert not (ready / ".venv/.podium-ready").exists()
    assert (ready / ".venv/podium.json").read_text() == UNFINISHED
    assert install(ready, bare_python, wheels).returncode == 0
    assert versions(ready)["torch"][0] == "2.13.0" and not list((ready / ".venv/tmp").iterdir())


@pytest.mark.slow(ci=True)
def test_two_installations_wait_for_each_other(ready, bare_python, wheels):
    forget_stamps(ready)
    with locked(str(ready)):
        second = subprocess.Popen(command(ready, bare_python), env=pip_from(wheels), stderr=subprocess.PIPE, text=True)
        assert "another installation is at work" in second.stderr.readline()
        time.sleep(0.2)
        assert second.poll() is None
    second.communicate(timeout=300)
    assert second.returncode == 0


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path, bare_python, wheels):
    checkout = write_checkout(tmp_path / "checkout")
    (checkout / ".venv").mkdir()
    (checkout / ".venv/thesis.txt").touch()
    result = install(checkout, bare_python, wheels)
    assert result.returncode == 30
    assert "is not a virtual environment: move it away" in result.stderr
    assert (checkout / ".venv/thesis.txt").exists()


# What it keeps


@pytest.mark.slow
def test_a_torch_that_sees_a_gpu_is_kept_with_its_triton(tmp_path, wheels):
    stubs = [("torch", "torch", "2.12.0+rocm7.2"), ("pytorch-triton-rocm", "triton", "3.6.0")]
    host = make_host(tmp_path / "container", stubs, gpu=True)
    checkout = write_checkout(tmp_path / "checkout")
    result = install(checkout, host, wheels)
    assert result.returncode == 0, result.stderr
    assert "keeping the installed torch 2.12.0+rocm7.2 and triton 3.6.0" in result.stderr
    found = versions(checkout)
    assert found["torch"][0] == "2.12.0+rocm7.2"
    assert found["triton"][0] == "3.6.0"
    assert Path(found["torch"][1]).is_relative_to(tmp_path / "container")
    assert Path(found["podium_stub_table"][1]).is_relative_to(checkout / ".venv")
    assert "torch==2.12.0+rocm7.2\n" in (checkout / ".venv/podium-constraints.txt").read_text()
    assert "include-system-site-packages = true" in (checkout / ".venv/pyvenv.cfg").read_text()


@pytest.mark.slow
def test_a_python_that_has_every_pin_installs_nothing_and_asks_no_network(tmp_path):
    host = make_host(tmp_path / "complete", [(name, name, version) for name, version in PINS.items()], gpu=False)
    checkout = write_checkout(tmp_path / "checkout")
    with socket.create_server(("127.0.0.1", 0)) as index:
        url = f"http://127.0.0.1:{index.getsockname()[1]}/"
        environment = pip_from(tmp_path, PIP_INDEX_URL=url, PIP_DEFAULT_TIMEOUT="1", PIP_RETRIES="0")
        del environment["PIP_NO_INDEX"]
        subprocess.run(command(checkout, host, "--dev"), env=environment, check=True, timeout=300)
        index.setblocking(False)
        with pytest.raises(BlockingIOError):
            index.accept()
    assert all(Path(file).is_relative_to(tmp_path / "complete") for _, file in versions(checkout).values())


@pytest.fixture
def machine(tmp_path):
    """Asks which build of torch a machine with these files gets, whose pip has no configuration but these variables."""
    folder = tmp_path / "machine"

    def for_cpus(files=(), **variables):
        shutil.rmtree(folder, ignore_errors=True)
        for name, text in dict(files).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        environment = pip_from(tmp_path, HOME=str(tmp_path), **variables)
        for name in {"PIP_NO_INDEX", "PIP_FIND_LINKS", CHOICE} - variables.keys():
            environment.pop(name, None)
        return is_for_cpus([sys.executable, "-I", "-m", "pip"], environment, str(folder))

    return for_cpus


NVIDIA_CARD = {"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x030200\n"}
ANOTHER_CARD = {"sys/bus/pci/devices/0/vendor": "0x1002\n", "sys/bus/pci/devices/0/class": "0x030000\n"}
SOUND_CARD = {"sys/bus/pci/devices/0/vendor": "0x10de\n", "sys/bus/pci/devices/0/class": "0x040300\n"}


def test_torch_for_cuda_is_not_downloaded_where_no_nvidia_gpu_is_unless_somebody_asked_for_it(machine):
    assert machine() and machine(ANOTHER_CARD) and machine(SOUND_CARD)
    assert not machine(NVIDIA_CARD) and not machine({"proc/driver/nvidia/version": ""})
    assert machine(NVIDIA_CARD, PODIUM_TORCH="cpu") and not machine(PODIUM_TORCH="cuda")
    with pytest.raises(ValueError, match="PODIUM_TORCH is cpu or cuda, and not 'rocm'"):
        machine(PODIUM_TORCH="rocm")


SLOW_PLACES = [
    pytest.param(f"PIP_{name}", marks=pytest.mark.slow) for name in ("PYPI_URL", "EXTRA_INDEX_URL", "FIND_LINKS")
]


@pytest.mark.parametrize("name", ["PIP_INDEX_URL", *SLOW_PLACES])
def test_where_pip_has_places_of_its_own_it_takes_torch_from_them(machine, name, tmp_path):
    assert machine(PIP_TIMEOUT="9")
    assert not machine(**{name: str(tmp_path)}) and not machine(**{name: f"{tmp_path}/it's"})
    assert machine(**{name: ""}), "pip ignores an empty variable"


@pytest.mark.slow
def test_torch_for_cpus_comes_from_its_own_index_and_all_else_from_where_pip_takes_it(tmp_path, bare_python, wheels):
    checkout, index = write_checkout(tmp_path / "checkout"), tmp_path / "index"
    (index / "torch").mkdir(parents=True)
    build = checkout / "harness/bootstrap/torch_build.py"
    build.write_text(build.read_text().replace(FOR_CPUS, index.as_uri()))
    environment = pip_from(wheels, PIP_INDEX_URL=(tmp_path / "nothing").as_uri(), PODIUM_TORCH="cpu")
    del environment["PIP_NO_INDEX"], environment["PIP_FIND_LINKS"]

    def install_there(**more):
        return subprocess.run(
            command(checkout, bare_python), env=environment | more, capture_output=True, text=True, timeout=300
        )

    result = install_there()
    assert result.returncode == 30 and f"pip could not get torch for CPUs from {index.as_uri()}" in result.stderr
    write_wheel(index / "torch", "torch", "2.13.0+cpu")
    (name,) = (path.name for path in (index / "torch").glob("*.whl"))
    (index / "torch/index.html").write_text(f'<a href="{name.replace("+", "%2B")}">{name}</a>')
    result = install_there(PIP_FIND_LINKS=str(wheels))
    assert result.returncode == 0, result.stderr
    assert [version for version, _ in versions(checkout).values()] == ["2.13.0+cpu", "3.7.1", "1.2"]


def test_another_build_than_there_is_one_sentence_before_anything_is_made(tmp_path, bare_python, wheels):
    checkout = write_checkout(tmp_path / "checkout")
    result = install(checkout, bare_python, wheels, PODIUM_TORCH="gpu")
    assert (result.returncode, result.stderr) == (30, "podium: PODIUM_TORCH is cpu or cuda, and not 'gpu'.\n")
    assert not (checkout / ".venv").exists()


def test_a_torch_without_a_gpu_is_no_reason_to_keep_it(tmp_path):
    found = probe(str(make_host(tmp_path / "host", [("torch", "torch", "2.12.0")], gpu=False)))
    assert (found.modules, found.gpu) == ({"torch": "2.12.0"}, False)
    assert what_to_keep(found, PINS, ["torch>=2.11", "triton>=3.6"]) == ""


@pytest.mark.slow(ci=True)
def test_an_environment_made_by_hand_keeps_its_gpu_torch(tmp_path, bare_python, ready, wheels):
    forget_stamps(ready)
    (ready / ".venv/podium.json").unlink()
    site = site_packages(ready / ".venv")
    shutil.rmtree(site / "torch-2.13.0.dist-info")
    for path, text in dist_info("torch", "2.12.0+rocm7.2").items():
        (site / path).parent.mkdir()
        (site / path).write_text(text)
        (site / path).with_name("RECORD").write_text("torch/__init__.py,,\n")
    (site / "torch/__init__.py").write_text(STUB.format(version="2.12.0+rocm7.2", gpu=True))
    result = install(ready, bare_python, wheels)
    assert result.returncode == 0, result.stderr
    assert versions(ready)["torch"][0] == "2.12.0+rocm7.2"


def test_what_is_kept_may_be_old_but_is_named():
    found = Found({"torch": "2.9.1", "numpy": "2.1.0"}, {"torch": "2.9.1"}, True, [])
    asked, pins = ask_around(["torch>=2.11", "numpy>=1.26", "click>=8.1"], dict(numpy="2.4.6", click="8"), found)
    assert asked == ["numpy>=1.26", "click>=8.1"]
    assert pins == {"torch": "2.9.1", "click": "8"}
    assert "torch 2.9.1 (older than 2.11, the oldest that is supported)" in what_to_keep(found, PINS, ["torch>=2.11"])


# What it refuses


def test_it_parses_where_it_must_say_that_python_is_too_old():
    for path in SOURCES:
        ast.parse(path.read_text(), feature_version=(3, 6))


@pytest.mark.parametrize("python", [f"python3.{minor}" for minor in range(6, 11)])
def test_an_old_python_says_what_to_do_instead(tmp_path, python):
    if not runs([python, "-c", ""]):
        pytest.skip(f"no {python} here")
    result = install(write_checkout(tmp_path / "checkout"), python, tmp_path)
    assert result.returncode == 30
    assert re.fullmatch(r"podium: Podium needs Python 3\.11 or newer, but .* is 3\.\d+: .*PYTHON=.*\n", result.stderr)


def test_the_sentence_for_an_old_python(monkeypatch):
    monkeypatch.setattr("harness.bootstrap.__main__.runs", lambda command: command[0] == "python3.12")
    with pytest.raises(SetupError, match=r"needs Python 3\.11 or newer.* is 3\.8: make PYTHON=python3\.12"):
        require_new_python((3, 8))
    monkeypatch.setattr("harness.bootstrap.__main__.runs", lambda command: False)
    with pytest.raises(SetupError, match="install one, then make PYTHON=/path/to/python3"):
        require_new_python((3, 8))


@pytest.mark.parametrize("module", ["ensurepip", "venv"])
def test_a_python_without_venv_names_the_package_that_has_it(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/podium.json").write_text(UNFINISHED)
    with pytest.raises(SetupError, match="apt install python3-venv"):
        make(str(tmp_path / ".venv"), False, Found({}, {}, False, []))
    assert (tmp_path / ".venv/podium.json").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path, bare_python, wheels):
    checkout = write_checkout(tmp_path / "checkout")
    (checkout / ".venv").symlink_to("/proc/podium")
    result = install(checkout, bare_python, wheels)
    assert result.returncode == 30
    assert "cannot write /proc/podium" in result.stderr.splitlines()[-1]


# What the project's files promise


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_dependency_has_a_pin_within_its_range():
    pins = read_pins(str(ROOT / "constraints.txt"))
    runtime, extras = read_requirements(str(ROOT / "pyproject.toml"))
    for requirement in map(Requirement, sum(extras.values(), runtime)):
        assert requirement.specifier.contains(pins[normalised(requirement.name)]), requirement


def test_the_oldest_versions_are_those_of_pyproject():
    ranges = {
        requirement.name: str(requirement.specifier) for requirement in map(Requirement, project()["dependencies"])
    }
    for module, oldest in OLDEST.items():
        assert ranges[module] == ">=" + ".".join(map(str, oldest))
    assert project()["requires-python"] == ">=" + ".".join(map(str, OLDEST_PYTHON))

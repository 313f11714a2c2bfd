"""Podium from its wheel and its sdist: in an environment of its own, in any directory, with packages that nobody can
write to."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest

from harness import __version__, catalog
from harness.sandbox import bubblewrap, landlock

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).resolve().parents[1]
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
INSTALL = ["install", "-q", "--no-deps", "--no-index", "--ignore-installed"]
"""This Python may have Podium, which must not pass for that of the environment."""


def call(words, folder, check=True, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    words = list(map(str, words))
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert not check or done.returncode == 0, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def hatchling(tmp_path_factory):
    """The variables of a process that builds without isolation."""
    if not importlib.util.find_spec("pip"):
        pytest.skip("this Python has no pip")
    if importlib.util.find_spec("hatchling"):
        return {}
    backend = tmp_path_factory.mktemp("backend")
    if call([*PIP, "install", "-q", "--target", backend, "hatchling>=1.26"], backend, check=False).returncode != 0:
        pytest.skip("hatchling is not installed, and pip cannot get it here")
    return {"PYTHONPATH": str(backend)}


@pytest.fixture(scope="module")
def build(hatchling, tmp_path_factory):
    """Builds the wheel of a checkout."""

    def of(checkout):
        folder = tmp_path_factory.mktemp("wheel")
        options = ["-q", "--no-deps", "--no-build-isolation", "-w", folder]
        call([*PIP, "wheel", *options, checkout], folder, **hatchling)
        (built,) = folder.glob("podium-*.whl")
        return built

    return of


@pytest.fixture(scope="module")
def wheel(build):
    return build(CHECKOUT)


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """bin/ of an environment with nothing but Podium, which nobody can write to."""
    folder, packages = bare_environment(tmp_path_factory.mktemp("installed") / "env")
    call([*PIP, "--python", folder / "bin" / "python", *INSTALL, wheel], folder)
    call(["chmod", "-R", "a-w", packages], folder)
    before = listed(packages)
    yield folder / "bin"
    assert listed(packages) == before, "something was written among the packages"  # root may
    call(["chmod", "-R", "u+w", packages], folder)


def bare_environment(folder):
    """An environment without packages, and their place in it. The dependencies it has from this Python."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python3*/site-packages")
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in here))
    return folder, packages


def listed(folder):
    return {(str(path), path.stat().st_mtime_ns) for path in folder.rglob("*")}


@pytest.fixture
def elsewhere(tmp_path):
    """A directory that holds nothing of Podium's."""
    return tmp_path


def test_the_wheel_has_one_name_and_nothing_that_was_left_lying_about(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"harness"}
    assert not [name for name in names if "__pycache__" in name or "results/" in name]
    for folder in ("problems/mla/reference.py", "reference/attention.py", "configs/eval.yml", "configs/new-problem"):
        assert any(name.startswith(f"harness/bundled/{folder}") for name in names), folder
    assert "harness/bundled/docs/debugging.md" in names and not [name for name in names if name.endswith(".png")]


def test_pip_installs_from_the_sdist_what_the_wheel_of_the_checkout_holds(hatchling, wheel, tmp_path):
    call([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], CHECKOUT, **hatchling)
    (sdist,) = tmp_path.glob("podium-*.tar.gz")
    folder, packages = bare_environment(tmp_path / "env")
    options = ["--no-build-isolation", "--no-compile"]
    call([*PIP, "--python", folder / "bin" / "python", *INSTALL, *options, sdist], tmp_path, **hatchling)
    installed = {path.relative_to(packages).as_posix() for path in (packages / "harness").rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("harness/")}
        assert installed == names
        assert not [name for name in names if (packages / name).read_bytes() != archive.read(name)]
    assert call([folder / "bin" / "podium", "--version"], tmp_path).stdout.strip() == f"Podium {__version__}"


@pytest.mark.parametrize("tracked", [True, False], ids=["checkout", "archive"])
def test_a_wheel_of_a_checkout_holds_what_git_tracks_and_one_of_an_archive_everything_but_caches(
    build, tmp_path, tracked
):
    for name in ("pyproject.toml", "hatch_build.py", "LICENSE", "README.md"):
        shutil.copy(CHECKOUT / name, tmp_path)
    ours = ["harness/__init__.py", "problems/toy/problem.yml", "submissions/toy/bundled.py", "configs/eval.yml"]
    theirs = ["harness/notes.txt", "submissions/toy/mine.py", "problems/own/problem.yml"]
    caches = ["submissions/toy/__pycache__/mine.pyc"]

    def write(names):
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text('__version__ = "1"\n')  # harness/__init__.py says it of all

    write(ours)
    if tracked:
        call(["git", "init", "-q"], tmp_path)
        call(["git", "add", "-A"], tmp_path)
    write([*theirs, *caches])
    names = {name for name in zipfile.ZipFile(build(tmp_path)).namelist() if ".dist-info/" not in name}
    expected = ours if tracked else ours + theirs
    assert names == {name if name.startswith("harness/") else f"harness/bundled/{name}" for name in expected}


def test_podium_judges_in_another_directory_and_leaves_its_results_there(programs, elsewhere):
    source = CHECKOUT / "problems" / "kv_replicate" / "controls" / "accepted" / "copy_of_expand.py"
    shutil.copy(source, elsewhere / "mine.py")
    words = [programs / "podium", "eval", "kv_replicate", "mine.py", "--quick", "--device", "cpu", "--json"]
    (run,) = json.loads(call(words, elsewhere).stdout)["runs"]
    assert run["ending"]["verdict"] == "accepted"
    assert run["problem_sha256"] == catalog.load_problem(CHECKOUT, "kv_replicate").sha256
    assert list((elsewhere / "results" / "local" / "kv_replicate").glob(f"*/{run['id']}.json"))
    assert {path.name for path in elsewhere.iterdir()} == {"mine.py", "results"}
    assert "mine" in call([programs / "podium", "leaderboard", "kv_replicate"], elsewhere).stdout


def test_the_pages_that_hints_name_are_there(programs, elsewhere):
    told = call([programs / "podium", "new-problem", "softcap"], elsewhere).stdout
    (words,) = re.findall("`podium (docs adding-a-problem)`", told)
    assert call([programs / "podium", *words.split()], elsewhere).stdout.startswith("# ")
    assert "`podium docs adding-a-problem`" in (elsewhere / "problems" / "softcap" / "problem.yml").read_text()
    assert "docs/" not in call([programs / "podium", "node", "--help"], elsewhere).stdout


def test_hints_are_commands_and_paths_that_work_there(programs, elsewhere):
    found = call([programs / "podium", "doctor", "--device", "cpu"], elsewhere).stdout
    assert "podium doctor --calibrate" in found and "make " not in found and "python3 -m harness" not in found
    wrong = call([programs / "podium", "check", "kv_replicate", "torch_expand_coyp.py"], elsewhere, check=False)
    assert "did you mean submissions/kv_replicate/torch_expand_copy.py?" in wrong.stderr
    words = ["kv_replicate", "submissions/kv_replicate/torch_expand_copy.py", "--case", "1", "--device", "cpu"]
    assert "accepted" in call([programs / "podium", "eval", *words], elsewhere).stdout


SPY = """
    import importlib, os
    import harness
    own, told = harness.__path__[0], []
    for folder in FOLDERS:
        for where, _, names in os.walk(folder.replace("HARNESS", own)):
            told += [os.path.join(where, name) for name in names]
    told += [os.path.join(own, name) for name in KNOWN] + OUTSIDE
    seen = []
    for path in told:
        try:
            seen.append(open(path, "rb").read() and path)
        except OSError:
            pass
    for name in MODULES:
        try:
            importlib.import_module(name)
            seen.append(name)
        except (ImportError, OSError):
            pass
    import numpy, torch.fft, sympy  # what lies beside the harness can be imported still
    open(os.path.join(own, "worker", "main.py")).close()
    raise RuntimeError(f"tried {len(told)}, read {seen}")
"""


@pytest.mark.parametrize("layer", ["bubblewrap", "landlock"])
def test_a_worker_reads_neither_bundled_problems_and_references_nor_the_judge_nor_the_results(
    programs, elsewhere, layer
):
    """With `podium` by the one layer, with `python3 -m harness`, which has the directory on its path, by the other."""
    path = os.environ["PATH"]
    if layer == "bubblewrap":
        if not bubblewrap.program():
            pytest.skip("bubblewrap is not installed")
        command = [programs / "podium"]
    else:
        if landlock.abi() == 0:
            pytest.skip("this kernel has no Landlock")
        tools = elsewhere / "tools"
        tools.mkdir()
        for name in ("rm", "chmod"):
            (tools / name).symlink_to(shutil.which(name))
        path, command = str(tools), [programs / "python", "-m", "harness"]
    secret = elsewhere / "results" / "local" / "kv_replicate" / "sources" / "rival.py"
    secret.parent.mkdir(parents=True)
    secret.write_text("# a rival's")
    known = [
        "bundled/problems/kv_replicate/reference.py",
        "bundled/problems/mla/problem.yml",
        "bundled/configs/eval.yml",
    ]
    known += ["bundled/reference/attention.py", "judge/evaluate.py", "judge/seeds.py", "catalog/problem.py"]
    spy = textwrap.dedent(SPY).replace("FOLDERS", repr(["HARNESS/bundled", "HARNESS/judge", str(elsewhere)]))
    spy = spy.replace("KNOWN", repr(known)).replace("OUTSIDE", repr([str(secret)]))
    modules = ["problems", "reference", "harness.judge.evaluate", "harness.catalog", "harness.bundled.reference"]
    (elsewhere / "spy.py").write_text(spy.replace("MODULES", repr(modules)))
    words = [*command, "eval", "kv_replicate", "spy.py", "--quick", "--device", "cpu", "--json"]
    done = call(words, elsewhere, check=False, PATH=path)
    assert done.returncode == 12, done.stderr
    (run,) = json.loads(done.stdout)["runs"]
    assert layer in run["environment"]["isolation"]
    assert run["ending"]["message"].startswith("RuntimeError: tried ")
    assert "read []" in run["ending"]["message"], run["ending"]["message"]


def test_evaluate_works_from_there_with_a_problem_of_the_directory_s_own(programs, elsewhere):
    """It imports the bundled mathematics, and is judged by the bundled counts unless the directory has some."""
    call([programs / "podium", "new-problem", "softcap"], elsewhere)
    call([programs / "podium", "new", "softcap", "mine"], elsewhere)
    problem = elsewhere / "problems" / "softcap" / "reference.py"
    problem.write_text(problem.read_text().replace("import torch\n", "import torch\n\nimport reference.attention\n", 1))
    program = """
        from harness import evaluate
        from harness.library import close
        run = evaluate("softcap", "submissions/softcap/mine.py", "cpu", "verdict")
        print(run.ending.verdict.value, run.config["quick_processes"])
        close()
    """
    words = [programs / "python", "-c", textwrap.dedent(program)]
    assert call(words, elsewhere).stdout == "accepted 1\n"
    (elsewhere / "configs").mkdir()
    counts = (CHECKOUT / "configs" / "eval.yml").read_text()
    (elsewhere / "configs" / "eval.yml").write_text(counts.replace("quick_processes: 1", "quick_processes: 2"))
    assert call(words, elsewhere).stdout == "accepted 2\n"


def test_a_directory_s_problem_wins_over_the_bundled_one_of_its_name(programs, elsewhere):
    folder = elsewhere / "problems" / "mla"
    shutil.copytree(CHECKOUT / "problems" / "mla", folder)
    yml = folder / "problem.yml"
    title = catalog.load_problem(CHECKOUT, "mla").title
    yml.write_text(yml.read_text().replace(title, "Another title", 1))
    found = json.loads(call([programs / "podium", "problems", "--json"], elsewhere).stdout)
    assert {each["name"]: each["title"] for each in found}["mla"] == "Another title"
    assert sorted(each["name"] for each in found) == catalog.problem_names(CHECKOUT)

"""What the README and docs/ say is there, what is there they say, and what they tell to type works as they say."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml

from harness.cli.options import verbs as cli
from harness.compile import tools
from harness.machine.device import DeviceFile, _described
from harness.model import Device

CHECKOUT = Path(__file__).resolve().parents[1]
README = (CHECKOUT / "README.md").read_text()
PAGES = {str(path.relative_to(CHECKOUT)): path.read_text() for path in sorted((CHECKOUT / "docs").glob("*.md"))}
TEXT = "\n".join([README, *PAGES.values()])
MAX_PICTURE_BYTES = 300_000

EVAL = "minutes: every bundled submission is judged"
STAND_INS = {
    "make eval PROBLEM=mla": ("make eval PROBLEM=mla ARGS=--help", EVAL),
    "make test": ("make test ARGS='--collect-only -q tests/test_roofline.py'", "minutes, and this is one of them"),
    "make eval PROBLEM=kv_replicate SUBMISSION=submissions/kv_replicate/mine.py": (
        "make eval PROBLEM=kv_replicate SUBMISSION=submissions/kv_replicate/mine.py ARGS='--quick --device cpu'",
        "it would be timed on a GPU where there is one, whose lock another evaluation may hold",
    ),
    "python3 -m harness doctor": ("python3 -m harness doctor --device cpu", "the answer must not depend on a GPU here"),
}
if tools.version("triton") != re.search(r"^triton==(\S+)", (CHECKOUT / "constraints.txt").read_text(), re.MULTILINE)[1]:
    STAND_INS["make check PROBLEM=prefill SUBMISSION=submissions/prefill/triton_flash.py TARGET=gfx942"] = (
        None, "the registers shown are those that the Triton that is pinned gives it",
    )  # fmt: skip
"""Commands in the README's and docs' blocks that are not run as they stand: what is run for them, if anything, and
why. All others are run."""

OPTIONS_EXPLAINED_BY_HELP = {"--help"}


def commands() -> Iterator[tuple[str, click.Command]]:
    yield "", cli
    yield from cli.commands.items()


def options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def test_every_verb_and_option_explains_itself_and_every_verb_has_an_example():
    for name, command in commands():
        assert command.help and "Example: python3 -m harness" in command.help, name
        for option in options(command):
            assert option.help, f"{name} {option.opts}"


def test_every_verb_stands_in_the_readme_s_table_with_its_arguments():
    for name, command in cli.commands.items():
        arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
        rows = " ".join(re.findall(rf"^\| `{name}\b([^`]*)`", section("Verbs"), re.MULTILINE))
        assert f"| `{name}" in section("Verbs"), f"{name} is not in the README's table of verbs"
        for argument in arguments:
            word = (argument.metavar or argument.name).strip("[]").upper().rstrip("S.…")
            assert word in rows, f"{name}: {word} is not in its row of the README's table"


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_option_is_mentioned_in_the_readme_or_in_docs():
    for name, command in commands():
        for option in options(command):
            missing = [word for word in option.opts if word.startswith("--") and not mentioned(word)]
            assert not set(missing) - OPTIONS_EXPLAINED_BY_HELP, f"{name}: {missing}"


def mentioned(option: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", TEXT) is not None


def test_every_target_of_make_is_mentioned():
    targets = re.findall(r"^([a-z-]+):.*## ", (CHECKOUT / "Makefile").read_text(), re.MULTILINE)
    assert len(targets) > 15
    for target in targets:
        assert re.search(rf"(make |`){target}\b", TEXT), target


def test_no_option_is_mentioned_that_is_not_there():
    here = {word for _, command in commands() for option in options(command) for word in option.opts}
    for line in README.splitlines():
        for word in re.findall(r"(?<![\w-])--[a-z][a-z-]+", line):
            assert word in here | OPTIONS_EXPLAINED_BY_HELP, f"{word}: {line}"


def test_every_link_within_the_checkout_leads_somewhere():
    for name, text in {"README.md": README, **PAGES}.items():
        folder = (CHECKOUT / name).parent
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s]+)", prose) + re.findall(r'(?:src|srcset)="([^"]+)"', text):
            assert link.startswith("http") or (folder / link).exists(), f"{name}: {link}"


def test_the_readme_leads_to_every_page():
    assert [name for name in PAGES if f"({name})" not in README] == []


def test_the_pictures_are_small_and_are_pictures():
    for name in ("board.png", "board-dark.png"):
        content = (CHECKOUT / "docs" / name).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) < MAX_PICTURE_BYTES


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the checkout's files as they are now, with this Python as its .venv."""
    root = tmp_path_factory.mktemp("copy") / "podium"
    for kind in (["--cached"], ["--others", "--exclude-standard", "--", ":!submissions"]):  # nobody's own submissions
        listed = subprocess.run(
            ["git", "-C", str(CHECKOUT), "ls-files", "-z", *kind], capture_output=True, text=True, check=False
        )
        if listed.returncode != 0:
            pytest.skip("this is no git checkout: which files belong to it is not known")
        for name in filter(None, listed.stdout.split("\0")):
            if (CHECKOUT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(CHECKOUT / name, root / name)
    (root / ".venv" / "bin").mkdir(parents=True)
    python = root / ".venv" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    for stamp in (".podium-ready", ".podium-ready-dev", ".podium-ready-offline"):
        (root / ".venv" / stamp).touch()
    (root / "tmp").mkdir()
    return root


def run(command: str, root: Path) -> str:
    """What it prints. Fails with what it says on stderr."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    path = f"{root / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**inherited, "PATH": path, "TMPDIR": str(root / "tmp"), "COLUMNS": "120"}
    environment["XDG_CACHE_HOME"] = str(root / "tmp" / "cache")  # nothing is kept from before
    done = subprocess.run(command, shell=True, cwd=root, env=environment, capture_output=True, text=True, timeout=300)
    right = done.returncode in ({0, 10} if command.startswith("python3 -m harness replay") else {0})
    assert right, f"{command}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def typed(text: str) -> list[tuple[str, list[str]]]:
    """The commands in a text's blocks, each with the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for block in blocks(text, "sh"):
        found += [(line.split("  #")[0].strip(), []) for line in block.splitlines() if line.strip()]
    for block in blocks(text, "console"):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:].strip(), []))
            else:
                found[-1][1].append(line)
    return found


def write_files(text: str, root: Path) -> None:
    """The files that a text gives in full: each a block after its path."""
    for name, content in re.findall(r"^`([\w/]+\.\w+)`:\n\n```\w+\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def type_all(text: str, root: Path) -> None:
    for command, lines in typed(text):
        stand_in, _ = STAND_INS.get(command, (command, ""))
        printed = run(stand_in, root) if stand_in else None
        if printed is not None and stand_in == command:
            assert_in_order([line for line in lines if line.strip() != "..."], printed, command)
        if command.startswith("make new PROBLEM=kv_replicate"):
            (kernel,) = blocks(README, "python")
            (root / "submissions" / "kv_replicate" / "mine.py").write_text(kernel)


def assert_in_order(lines: list[str], printed: str, command: str) -> None:
    rest = printed.replace("\N{NO-BREAK SPACE}", " ").splitlines()
    for line in lines:
        assert line in rest, f"{command} does not print (any more, or in this order): {line}\n{printed}"
        rest = rest[rest.index(line) + 1 :]


HEAD_MISPLACED = """

right = custom_kernel


def custom_kernel(data):
    out = right(data)
    out[:, 5] = out[:, 4]
    return out
"""


@pytest.mark.slow
def test_the_readme_s_commands_do_what_it_says(copy):
    template = (copy / "problems" / "mla" / "template.py").read_text()
    (copy / "mine.py").write_text(template + HEAD_MISPLACED)
    type_all(README, copy)
    stored = list((copy / "results" / "local" / "kv_replicate").glob("*/*-mine.json"))
    assert len(stored) == 1 and '"accepted"' in stored[0].read_text()


@pytest.mark.slow
def test_a_problem_is_added_as_the_page_says(copy):
    page = PAGES["docs/adding-a-problem.md"]
    write_files(page, copy)
    type_all(page.replace("ARGS=--quick", "ARGS='--quick --device cpu'"), copy)
    assert list((copy / "results" / "local" / "softcap").glob("*/*-mine.json"))
    shown = run("python3 -m harness leaderboard softcap", copy)
    assert "mine" in shown and "Soft-capped scores" in shown


def test_a_device_is_added_as_the_page_says(copy):
    page = PAGES["docs/adding-a-device.md"]
    write_files(page, copy)
    described = DeviceFile.model_validate(yaml.safe_load((copy / "configs" / "devices" / "example.yml").read_text()))
    bare = Device(
        kind="cuda", name="Example GPU 1000 SXM", slug="example", arch="sm_90", torch_device="cuda:0",
        memory_bytes=1 << 30, flush_bytes=1,
    )  # fmt: skip
    found = _described(copy, bare)
    assert found.bandwidth_bytes_per_s == described.bandwidth_bytes_per_s == 4.8e12
    assert found.peak_flops_per_s["float8"] == 1978.9e12 and found.flush_bytes == 256 << 20
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(DeviceFile.model_fields)


def test_every_exception_still_stands_in_a_page_and_has_a_reason():
    every = {command for text in (README, *PAGES.values()) for command, _ in typed(text)}
    assert set(STAND_INS) <= every
    assert all(len(reason) > 20 for _, reason in STAND_INS.values())


def test_the_first_kernel_is_ten_lines():
    (kernel,) = blocks(README, "python")
    assert len([line for line in kernel.splitlines() if line.strip()]) == 10

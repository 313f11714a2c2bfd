"""What the README and docs/ say is there, what is there they say, and what they tell to type works as they say."""

import ast
import inspect
import json
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

import harness
from bench import corruption_page, judged_share, kernel_table, told_figures
from harness import catalog, evaluate
from harness.catalog.config import load_config
from harness.cli import main
from harness.cli.options import verbs as cli
from harness.errors import InfrastructureError, UsageError
from harness.judge import bounds
from harness.machine.device import DeviceFile
from harness.machine.device import described as with_its_file
from harness.model import OLDER_SOURCE, ClockOwner, Device, Estimate, Label, Run, Tolerance, Unranked, Verdict
from harness.ranking.board import rank
from harness.records.entry import of_present, of_run
from harness.records.run_file import load_run
from harness.records.store import Store
from harness.render.figures import error_figure, microseconds, percent
from harness.render.notes import OF_THE_LIMIT

CHECKOUT = Path(__file__).resolve().parents[1]
README = (CHECKOUT / "README.md").read_text()
PAGES = {
    str(path.relative_to(CHECKOUT)): path.read_text()
    for path in [*sorted((CHECKOUT / "docs").glob("*.md")), CHECKOUT / "CONTRIBUTING.md"]
}
TEXT = "\n".join([README, *PAGES.values()])
OF_PROBLEMS = {
    str(path.relative_to(CHECKOUT)): path.read_text() for path in sorted((CHECKOUT / "problems").glob("*/*.md"))
}
PROSE = {"README.md": README, **PAGES, **OF_PROBLEMS}
MAX_PICTURE_BYTES = 350_000
MAX_LINES = 200
MAX_WORDS = 32

EVAL = "minutes: every bundled submission is judged"
STAND_INS = {
    "make eval PROBLEM=mla": ("make eval PROBLEM=mla ARGS=--help", EVAL),
    "make eval PROBLEM=kv_replicate SUBMISSION=submissions/kv_replicate/mine.py": (
        "make eval PROBLEM=kv_replicate SUBMISSION=submissions/kv_replicate/mine.py ARGS='--quick --device cpu'",
        "it would be timed on a GPU where there is one, whose lock another evaluation may hold",
    ),
    "make doctor": ("make doctor DEVICE=cpu", "the answer must not depend on a GPU here"),
    "python3 -m harness doctor": ("python3 -m harness doctor --device cpu", "the answer must not depend on a GPU here"),
}
"""Commands in the README's and docs' blocks that are not run as they stand: what is run for them, if anything, and
why. All others are run."""

OPTIONS_EXPLAINED_BY_HELP = {"--help", "--version"}


def commands() -> Iterator[tuple[str, click.Command]]:
    yield "", cli
    for name, command in cli.commands.items():
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {word}", each) for word, each in command.commands.items())


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
        firsts = re.findall(r"^\| (`[^|]*) \|", section("Verbs"), re.MULTILINE)
        rows = [words for first in firsts for words in re.findall(rf"`{name}\b([^`]*)`", first)]
        assert rows, f"{name} is not in the README's table of verbs"
        for argument in arguments:
            word = (argument.metavar or argument.name).strip("[]").upper().rstrip("S.…")
            assert word in " ".join(rows), f"{name}: {word} is not in its row of the README's table"


def section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 130


def long_sentences(page: str) -> list[str]:
    return [sentence for sentence in sentences(page) if len(re.findall(r"\S*\w\S*", sentence)) > MAX_WORDS]


def sentences(page: str) -> Iterator[str]:
    """Those of a Markdown page, without its code blocks. A heading, a list's item and a table's cell end one. What
    stands in backticks is one word."""
    page = re.sub(r"^(```|~~~).*?^\1$|<!--.*?-->", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"(?<=\n\n)(?:    .*\n)+", "", page)
    page = re.sub(r"`[^`]+`", "Code", page)
    page = re.sub(r"!?\[([^]]*)\]\([^)]*\)|<[^>]*>", r"\1", page)
    page = re.sub(r"^(#.*|\|.*)$", r"\n\1\n", page, flags=re.MULTILINE)
    page = re.sub(r"^ *([-*]|\d+\.) ", "\n\n", page, flags=re.MULTILINE).replace("|", "\n\n")
    for paragraph in re.split(r"\n\s*\n", page):
        yield from re.split(r"[.!?][\"')*_]*\s+(?=[^a-z\s])", paragraph.strip())


def test_a_long_sentence_is_found_wherever_prose_stands_and_nowhere_else():
    long, short = " ".join(["word"] * 33), " ".join(["word"] * 32)
    for page in (long, f"# {long}", f"- {short}\n- {long}", f"| {short} | {long} |", f"Short. {long}.", f"1. {long}"):
        assert len(long_sentences(page)) == 1, page
    half = " ".join(["word"] * 17)
    for page in (
        short, f"```\n{long}\n```", f"So:\n\n    {long}\n", f"`{long}`", f"{half}.\n{half.capitalize()}.",
        f"- {half}\n- {half}", f"| {half} | {half} |\n| {half} | {half} |", f"{half}\n\n{half}", f"[{half}](a b)",
        f"# {half}\n{half}", f"**{half.capitalize()}.** {half.capitalize()}",
    ):  # fmt: skip
        assert long_sentences(page) == [], page


@pytest.mark.parametrize("name", sorted(PROSE))
def test_no_page_is_long(name):
    assert len(PROSE[name].splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", sorted(PROSE))
def test_no_sentence_is_long(name):
    assert long_sentences(PROSE[name]) == []


def test_every_command_that_is_told_is_one():
    """`python3 -m harness ...` and `make ...`, in blocks and in lines: the verb or target, its options, its words."""
    told = [(name, words) for name, text in {"README.md": README, **PAGES}.items() for words in told_commands(text)]
    assert len(told) > 40
    for name, words in told:
        if words[0] == "make":
            assert_made(words[1:], f"{name}: {' '.join(words)}")
        else:
            assert_parsed(words[3:], f"{name}: {' '.join(words)}")


def told_commands(text: str) -> Iterator[list[str]]:
    """As words. Brackets around what may be left out, and what stands for more of the same, are no part of them."""
    spans = re.findall(r"`((?:python3 -m harness|make) [^`]+)`", text.replace("``", ""))
    lines = re.findall(r"^(?:\$ )?((?:python3 -m harness|make) .*?)(?:  +#.*)?$", text, re.MULTILINE)
    rows = [f"python3 -m harness {row}" for row in re.findall(r"^\| `([a-z]+ [^`]*|[a-z]+)` \|", text, re.MULTILINE)]
    for command in [*spans, *lines, *(rows if "| `python3 -m harness` | does |" in text else [])]:
        words = shlex.split(re.sub(r"[\[\]…|]|\.\.\.", " ", command.replace("\n", " ")), comments=True)
        if len(words) > (1 if words[0] == "make" else 3):
            yield words


def assert_parsed(words: list[str], where: str) -> None:
    while words[:1] == ["--root"]:
        words = words[2:]
    if words[:1] in ([], ["VERB"]):
        return
    assert words[0] in cli.commands, f"{where}: there is no verb {words[0]}"
    command = cli.commands[words[0]]
    if "--help" in words:
        return
    while isinstance(command, click.Group) and words[1:] and words[1] in command.commands:
        command, words = command.commands[words[1]], words[1:]
    if isinstance(command, click.Group):
        assert words[1:] in ([], ["COMMAND"]), f"{where}: {words[0]} has no {words[1]}"
        return
    try:
        _, rest, _ = command.make_parser(click.Context(command)).parse_args(words[1:])
    except click.UsageError as error:
        pytest.fail(f"{where}: {error.format_message()}")
    assert not rest, f"{where}: {rest} is too much"


def assert_made(words: list[str], where: str) -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE)) | {"VERB"}
    variables = set(re.search(r"^VARIABLES := (.*)$", makefile, re.MULTILINE)[1].split())
    for word in words:
        assert word.partition("=")[0] in (variables if "=" in word else targets), f"{where}: {word}"


def test_the_page_of_corruptions_has_all_problems_as_they_were_measured():
    page = corruption_page.PAGE.read_text()
    tables = corruption_page.written(sorted((CHECKOUT / "bench" / "measured").glob("corruptions-*.jsonl")))
    assert corruption_page.renewed(page, tables) == page, "make them anew: python bench/corruption_page.py"
    assert re.findall("^## (.*)", tables, re.MULTILINE) == catalog.problem_names(CHECKOUT)


def test_the_board_in_the_readme_is_that_of_the_published_runs():
    form = r"^\| (\d+(?:\N{EN DASH}\d+)?) \| (\w+) \| ([^|]+) \| ([\d.]+) \| (\d+ %) \| ([^|]+) \| (\w+) \| 1 \|$"
    rows = re.findall(form, README, re.MULTILINE)
    problem = catalog.load_problem(CHECKOUT, "prefill")
    judged = [run for run in judged_runs("nvidia-h200") if run.problem == "prefill" and run.ranked]
    board = rank([of_present(of_run("", run), problem) for run in judged], problem.baselines)
    assert rows == [
        (
            standing.rank,
            standing.entry.submission,
            microseconds(
                Estimate(
                    latency_ns=standing.entry.score_ns, low_ns=standing.entry.low_ns, high_ns=standing.entry.high_ns
                )
            ).replace("\N{NO-BREAK SPACE}", " "),
            f"{standing.times_baseline:.2f}",
            percent(standing.of_limit).replace("\N{NO-BREAK SPACE}", " "),
            error_figure(standing.entry.error),
            standing.entry.tolerance,
        )
        for standing in board.standings
    ]
    several = {2: "two", 3: "three"}.get(board.cards)
    cards = f"{several} H200s. The intervals contain what a card adds" if several else "one H200"
    assert len(rows) == 4 and f"of runs on {cards}:" in README


def test_how_near_a_latency_is_to_its_floor_has_one_name_and_one_meaning():
    """Everywhere that a reader meets it: pages, templates, messages, tables."""
    shown = [CHECKOUT / "README.md", *(CHECKOUT / name for name in PAGES), *(CHECKOUT / "problems").glob("*/README.md")]
    shown += [path for folder in ("harness", "bench") for path in (CHECKOUT / folder).rglob("*.*")]
    for path in (path for path in shown if path.suffix in (".md", ".py", ".j2", ".js")):
        other = re.search(r"(%|per cent|percentages?|share|fraction)[\s_]of[\s_]+(the[\s_])?floor", path.read_text())
        assert not other, f"{path}: {other and other[0]}"
    assert "floor ÷ latency" in OF_THE_LIMIT and "100 % is best" in OF_THE_LIMIT
    for text in (README, PAGES["docs/kernels.md"], PAGES["docs/rivals.md"]):
        assert "floor ÷ latency, 100 % is best" in text.replace("\n", " ")


def test_a_kernel_s_figure_on_the_board_is_the_same_in_the_table_of_kernels():
    """The README has the runs on H200s. The table of targets has the share on the board in its last column."""
    told = re.findall(r"^\| prefill/(\w+) +\|.*\| (\d+ %) \(bf16\) +\|$", PAGES["docs/kernels.md"], re.MULTILINE)
    assert len(told) == 2
    for name, share in told:
        (row,) = [row for row in README.splitlines() if f"| {name} |" in row]
        assert f"| {share} |" in row


def test_the_readme_names_every_problem():
    for name in catalog.problem_names(CHECKOUT):
        assert f"[`{name}`](problems/{name}/README.md)" in README


def test_the_readme_s_exit_codes_are_the_program_s():
    told = dict(re.findall(r"(\d+) ([a-z ]+?)[,.\n(]", section("Verbs").split("Exit codes:")[1].replace("\n", " ")))
    for verdict in set(Verdict) - {Verdict.INFRASTRUCTURE_ERROR}:
        assert told[str(verdict.exit_code)].strip() == verdict.words
    assert told[str(UsageError.exit_code)].strip() == "usage"
    assert told[str(InfrastructureError.exit_code)].strip() == "infrastructure"


def test_the_readme_s_figures_are_the_program_s():
    config = load_config(CHECKOUT)
    numbers = {3: "three", 5: "five"}
    assert f"at least {numbers[config.gpu.processes]} fresh processes (CPU: {numbers[config.cpu.processes]})" in README
    assert f"{config.confidence:.0%}".replace("%", " %") + " interval" in README
    gpu, cpu = (bounds.GPU_SHARE, bounds.GPU_NS), (bounds.CPU_SHARE, bounds.CPU_NS)
    assert f"{gpu[0]:.0%} + {gpu[1] / 1e3:g} µs".replace("%", " %") in README
    assert f"{cpu[0]:.0%} + {cpu[1] / 1e3:g} µs".replace("%", " %") in README
    switches = [constant.latency_ns / 1e6 for run in judged_runs() for constant in run.constants[:1]]
    assert all(f"{switch:.2f} ms on an H200" in README for switch in switches) and len(switches) >= 7


def judged_runs(device="nvidia-h200"):
    runs = map(load_run, sorted((CHECKOUT / "results" / "published").glob(f"*/{device}/*.json")))
    return [run for run in runs if run.clock is ClockOwner.JUDGE]


@pytest.mark.slow(ci=True)
def test_the_figures_in_prose_are_those_of_the_published_runs():
    assert not told_figures.missing(), "see bench/told_figures.py"


def test_the_problems_with_published_runs_are_the_ones_that_are_named():
    (row,) = re.findall(r"^\| timed and ranked \| published: ([^|]*)", README, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)) == {run.problem for run in judged_runs() if run.ranked}


def test_the_tables_of_the_kernels_are_those_of_the_published_runs():
    made = kernel_table.generated(sorted((CHECKOUT / "bench" / "measured").glob("kernels-*.jsonl")))
    assert set(made) == {"kernels.md", "rivals.md"}
    for name, tables in made.items():
        page = PAGES[f"docs/{name}"]
        assert kernel_table.renewed(page, tables) == page, "make them anew: python bench/kernel_table.py"


@pytest.mark.slow(ci=True)
def test_the_table_of_another_card_is_that_of_the_published_runs():
    assert judged_share.table(judged_share.H100) in PAGES["docs/kernels.md"], "make it anew: bench/judged_share.py"


@pytest.mark.slow(ci=True)
def test_a_published_run_of_another_source_than_the_bundled_file_s_is_marked_on_the_board(copy, capsys):
    """Each file that has a ranked run, held against that run's source."""

    def leaderboard(problem, *words):
        assert main(["--root", str(copy), "leaderboard", problem, "--device", "nvidia-h200", *words]) == 0
        return capsys.readouterr().out

    compared = 0
    for problem in sorted({run.problem for run in judged_runs()}):
        printed = leaderboard(problem, "--json")
        ranked = json.loads(printed)["boards"][0]["ranked"]
        unranked = [e for e in json.loads(printed)["boards"][0]["unranked"] if e["clock"] == "judge"]
        for entry in (*ranked, *unranked):
            judged = Store(CHECKOUT).source(problem, entry["sha256"])
            now = (CHECKOUT / "submissions" / problem / f"{entry['submission']}.py").read_bytes()
            assert entry["older_source"] == (judged != now), entry["submission"]
            compared += 1
        rows = leaderboard(problem).splitlines()
        marked = [row for row in rows if row.startswith("│") and OLDER_SOURCE in row]
        assert len(marked) == sum(entry["older_source"] for entry in ranked)
    assert compared >= 7


@pytest.mark.parametrize("path", sorted((CHECKOUT / "submissions").glob("*/*.py")), ids=lambda path: path.stem)
def test_no_measured_figure_stands_in_a_bundled_file_s_docstring(path):
    """Else a figure could not be corrected without orphaning the file's run."""
    told = ast.get_docstring(ast.parse(path.read_text()))
    assert not re.search(r"20\d\d-\d\d-\d\d|\d µs|[Mm]easured on|\bslower at\b", told)


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


def test_a_program_of_this_checkout_is_there_and_is_told_with_the_python_that_has_its_packages():
    """Without `.venv/bin/` a fresh checkout answers that tabulate is missing."""
    every = []
    for name, text in PROSE.items():
        shown = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)  # marks for the programs that make the tables
        every += [(name, *found) for found in re.findall(r"(\S*python3?) (-m )?((?:bench|tests)[./]\S+?)[\s`]", shown)]
    assert len(every) > 12
    for name, python, _, program in every:
        assert python.endswith(".venv/bin/python"), f"{name}: {python} {program}"
        path = program if program.endswith(".py") else program.replace(".", "/") + ".py"
        assert (CHECKOUT / path).is_file(), f"{name}: {program}"


def test_every_link_within_the_checkout_leads_somewhere():
    for name, text in PROSE.items():
        folder = (CHECKOUT / name).parent
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
        for link in re.findall(r"\]\(([^)#\s]+)", prose) + re.findall(r'(?:src|srcset)="([^"]+)"', text):
            assert link.startswith("http") or (folder / link).exists(), f"{name}: {link}"


def anchors(page: str) -> set[str]:
    """Those that GitHub gives the headings of a Markdown page."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", prose), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


def test_every_link_to_a_heading_finds_it():
    pages = {CHECKOUT / name: text for name, text in PROSE.items()} | {
        CHECKOUT / "CHANGELOG.md": (CHECKOUT / "CHANGELOG.md").read_text()
    }
    links = [
        (page, (page.parent / name).resolve() if name else page, anchor)
        for page, text in pages.items()
        for name, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", text)
    ]
    assert len(links) > 10
    for page, target, anchor in links:
        assert anchor in anchors(pages[target]), f"{page}: {target.name}#{anchor}"


def test_the_changes_begin_with_this_version():
    said = re.findall(r"^## (.*)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(harness.__version__)}, 20\d\d-\d\d-\d\d", said[0])


def test_the_index_leads_to_every_page_and_the_readme_to_it():
    names = {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")} - {"README.md"}
    linked = re.findall(r"^\| \[([\w-]+\.md)\]\(\1\) \|", PAGES["docs/README.md"], re.MULTILINE)
    assert sorted(linked) == sorted(names)
    assert "(docs/README.md)" in README and "(CONTRIBUTING.md)" in README


def test_the_pictures_are_small_and_are_pictures():
    for name in ("board.png", "board-dark.png"):
        content = (CHECKOUT / "docs" / name).read_bytes()
        assert content.startswith(b"\x89PNG") and len(content) < MAX_PICTURE_BYTES


def test_the_pictures_show_what_is_published():
    shown = json.loads((CHECKOUT / "docs" / "board.json").read_text())
    published = {path.stem for path in (CHECKOUT / "results" / "published" / shown["problem"]).glob("*/*.json")}
    assert set(shown["runs"]) == published, "make them anew: python bench/picture.py"


@pytest.fixture(scope="module")
def copy(tmp_path_factory, no_namespaces):
    """A copy of the checkout's files as they are now, with this Python as its .venv, whose workers are forked."""
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
    (root / ".venv" / "bin" / "bwrap").symlink_to(f"{no_namespaces}/bwrap")
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
    may_be_wrong = command.startswith(("python3 -m harness replay ", "python3 -m harness check "))
    right = done.returncode in ({0, 10} if may_be_wrong else {0})
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


def type_all(text: str, root: Path) -> str:
    """Returns all that was printed."""
    said = []
    for command, lines in typed(text):
        stand_in, _ = STAND_INS.get(command, (command, ""))
        printed = run(stand_in, root) if stand_in else None
        said.append(printed or "")
        if printed is not None and stand_in == command:
            assert_in_order([line for line in lines if line.strip() != "..."], printed, command)
        if command.startswith("make new PROBLEM=kv_replicate"):
            (kernel,) = blocks(README, "python")
            (root / "submissions" / "kv_replicate" / "mine.py").write_text(kernel)
    return "".join(said)


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


@pytest.mark.slow(ci=True)
def test_the_readme_s_commands_do_what_it_says(copy):
    template = (copy / "problems" / "mla" / "template.py").read_text()
    (copy / "mine.py").write_text(template + HEAD_MISPLACED)
    said = type_all(README, copy)
    (last_line,) = re.findall(r"^`(accepted on CPU .*)`\.$", README, re.MULTILINE)
    assert last_line in said and re.search(r"│ mine +│.*│ interpreted │", said)
    type_all(PAGES["docs/check.md"], copy)
    stored = list((copy / "results" / "local" / "kv_replicate").glob("*/*-mine.json"))
    assert len(stored) == 1 and '"accepted"' in stored[0].read_text()


@pytest.mark.slow
def test_a_first_kernel_is_refused_and_mended_as_the_page_says(copy):
    """Each file that the page gives is written before what stands below it is typed."""
    before, *rest = re.split(r"(?=^`submissions/)", PAGES["docs/first-kernel.md"], flags=re.MULTILINE)
    type_all(before, copy)
    assert len(rest) == 2
    for part in rest:
        write_files(part, copy)
        type_all(part, copy)


@pytest.mark.slow
def test_a_problem_is_added_as_the_page_says(copy):
    page = PAGES["docs/adding-a-problem.md"]
    write_files(page, copy)
    type_all(page.replace("ARGS=--quick", "ARGS='--quick --device cpu'"), copy)
    assert list((copy / "results" / "local" / "softcap").glob("*/*-mine.json"))
    shown = run("python3 -m harness leaderboard softcap", copy)
    assert "mine" in shown and "Soft-capped scores" in shown


@pytest.mark.slow
def test_the_loop_of_the_library_s_page_prints_what_it_says(copy):
    page = PAGES["docs/library.md"]
    write_files(page, copy)
    assert len((copy / "loop.py").read_text().splitlines()) <= 32
    type_all(page, copy)


def test_the_library_s_page_names_each_argument_and_only_fields_of_a_run():
    page = PAGES["docs/library.md"]
    takes, comes = page.split("## What a call takes")[1].split("## What comes back")
    comes = comes.split("\n## ")[0]
    arguments = re.findall(r"^\| `(\w+)` \|", takes, re.MULTILINE)
    assert arguments == list(inspect.signature(evaluate).parameters)
    fields = re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`.*?) \|", comes, re.MULTILINE)))
    assert len(fields) > 7 and set(fields) <= set(Run.model_fields)


@pytest.mark.slow
def test_the_folder_in_gpu_modes_form_is_judged_as_its_page_says(copy):
    page = PAGES["docs/foreign-folder.md"]
    (submission,) = re.findall(r"^A submission, `(twice.py)`:$", page, re.MULTILINE)
    write_files(page, copy)
    (copy / submission).write_text(blocks(page, "python")[-1])
    type_all(page, copy)
    (stored,) = (copy / "results" / "local" / "doubled").glob("*/*.json")
    told = re.findall(r"begins with `(.*?)`", page.replace("\n", " "))
    message = json.loads(stored.read_text())["ending"]["message"]
    assert told == [f"accepted: twice on doubled: {message.partition(',')[0]}"]


def test_the_page_of_tolerances_names_each_limit():
    told = " ".join(re.findall(r"`([^`\n]+)`", PAGES["docs/tolerances.md"]))
    assert Tolerance.model_fields.keys() <= set(re.findall(r"\w+", told))


def test_the_library_s_page_names_each_label_of_a_latency():
    told = PAGES["docs/library.md"].split("| label | means |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `([\w-]+)` \|", told, re.MULTILINE)) == {label.value for label in Label}


def test_the_page_of_measurement_explains_each_label_and_each_reason_not_to_rank_a_run():
    page = PAGES["docs/measurement.md"]
    labels, reasons = page.split("## Labels of a case")[1].split("## Why a run is not ranked")
    assert set(re.findall(r"^\| `([\w-]+)` \|", labels, re.MULTILINE)) == {label.value for label in Label}
    firsts = re.findall(r"^\| (`.*?) \|", reasons, re.MULTILINE)
    told = {word for first in firsts for word in re.findall(r"`([^`]+)`", first)}
    assert told == {reason.value for reason in Unranked} - {Unranked.NOISY}, "noisy are runs of schema version 1 alone"


def test_a_device_is_added_as_the_page_says(copy):
    page = PAGES["docs/adding-a-device.md"]
    write_files(page, copy)
    described = DeviceFile.model_validate(yaml.safe_load((copy / "configs" / "devices" / "example.yml").read_text()))
    bare = Device(
        kind="cuda", name="Example GPU 1000 SXM", slug="example", arch="sm_90", torch_device="cuda:0",
        memory_bytes=1 << 30, flush_bytes=1,
    )  # fmt: skip
    found = with_its_file(copy, bare)
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


def test_every_path_that_contributing_sends_a_change_to_is_there():
    table = (CHECKOUT / "CONTRIBUTING.md").read_text().split("## Where a change goes")[1].split("## Rules")[0]
    named = re.findall(r"`((?:harness|configs)/[\w/.]+)`", table)
    assert len(named) > 30 and [path for path in named if not (CHECKOUT / path).exists()] == []
    rooms = {path.split("/")[1] for path in named if path.startswith("harness/")}
    assert len(rooms) > 15


def test_every_folder_that_contributing_names_is_there():
    folders = re.findall(r"(?m)^\| `([\w/]+)` \|", (CHECKOUT / "CONTRIBUTING.md").read_text())
    named = [folder.replace("NAME", "mla") for folder in folders]
    assert len(named) > 9 and [folder for folder in named if not (CHECKOUT / folder).is_dir()] == []

"""A command that is run: its lines are narrated as they come, its failure is explained in a sentence."""

import os
import re
import select
import subprocess
import sys
from typing import Callable, Dict, Iterator, List, Optional

SILENCE_S = 20  # after this long without a word from pip, say that it still works
LAST_LINES = 12  # of a failed command's output

AGAIN = "run the same command again"
DISK_FULL = f"the disk is full: torch takes 2 GB, its CUDA build 6 GB and 3 GB while unpacking. Make room and {AGAIN}."
PIP_FAILURES = [  # what pip's output means, first match first
    (r"No space left on device|Disk quota exceeded", DISK_FULL),
    (r"Read-only file system|Permission denied", "pip may not write there: work in a copy of the checkout you own."),
    (
        r"ResolutionImpossible",
        "the pins conflict with your pip configuration (PIP_CONSTRAINT?) or with each other: see pip's words above.",
    ),
    (
        r"No matching distribution|Could not find a version|Connection|Temporary failure|Max retries|timed out|HTTP",
        "pip cannot find or fetch the packages (its words are above): is there a network? Connect, or point"
        f" PIP_INDEX_URL or PIP_FIND_LINKS at a place that has them, and {AGAIN}.",
    ),
]


class SetupError(Exception):
    """The environment cannot be made; the message says why and what to do, in one or two sentences."""


def say(line: str) -> None:
    print(f"podium: {line}", file=sys.stderr, flush=True)


def runs(command: List[str]) -> bool:
    try:
        return subprocess.call(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def run(
    command: List[str],
    failure: str,
    narrate: Callable[[str], None] = lambda line: None,
    variables: Optional[Dict[str, str]] = None,
) -> None:
    """Run `command`, each line of its output through `narrate`; if it fails show the last ones and raise SetupError."""
    hidden = ("PYTHONHOME", "PYTHONPATH")  # what they make importable is not in the environment
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment.update(variables or {}, PYTHONUNBUFFERED="1", PIP_USER="0")
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        close_fds=False,  # the lock
    )
    output = []
    try:
        for line in lines_of(process):
            output.append(line)
            narrate(line)
        code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code != 0:
        telling = [line for line in output if line.strip() and "is ignored" not in line]
        print(*(f"    {line}" for line in telling[-LAST_LINES:]), sep="\n", file=sys.stderr)
        meaning = [sentence for pattern, sentence in PIP_FAILURES if re.search(pattern, "\n".join(telling))]
        raise SetupError(meaning[0] if meaning else f"{failure} with exit code {code}: its words are above.")


def lines_of(process: "subprocess.Popen[bytes]") -> Iterator[str]:
    """The process's output by the line; says so when it has been silent for a while."""
    assert process.stdout
    pending, silent_s = b"", 0
    while True:
        if not select.select([process.stdout], [], [], SILENCE_S)[0]:
            silent_s += SILENCE_S
            say(f"  still at work ({silent_s} s since the last news)")
            continue
        chunk = os.read(process.stdout.fileno(), 65536)
        *lines, pending = (pending + (chunk or b"\n")).split(b"\n")
        yield from (line.decode(errors="replace") for line in lines)
        silent_s = 0
        if not chunk:
            return

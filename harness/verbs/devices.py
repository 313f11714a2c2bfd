"""Which device a word means, of those that have stored runs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from harness.errors import UsageError
from harness.machine.device import slug


def folder(word: str, known: Mapping[str, str], problems: Sequence[str]) -> str:
    """Return the folder of the device that `word` means: a folder, a device's name, or a part of either, in any case.

    A number in a part matches whole, as in `-k`: h20 is not in nvidia-h200. `known`: the names of the devices with runs
    of `problems`, by folder. Raises UsageError if the word fits none of them or several.
    """
    part = slug(word)
    if part in known:
        return part
    before, after = r"(?<!\d)" if part[0].isdigit() else "", r"(?!\d)" if part[-1].isdigit() else ""
    sought = re.compile(f"{before}{re.escape(part)}{after}")
    fitting = [each for each, name in sorted(known.items()) if sought.search(each) or sought.search(slug(name))]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise UsageError(f"{word!r} fits {len(fitting)} devices with runs: {', '.join(fitting)}", "give one of them")
    of = f" of {problems[0]}" if len(problems) == 1 else ""
    there = f"these devices have runs: {', '.join(sorted(known))}" if known else "no device has runs"
    raise UsageError(f"there are no runs{of} on {word!r}", there)

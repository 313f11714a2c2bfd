"""Static triage: suspicious text that a scanner finds in a submission. It flags and never decides.

The scanner is KernelGuard (https://pypi.org/project/kernelguard/), a set of rules about past cheats in GPU kernel
competitions. It is optional; without it nothing is flagged. It knows patched clocks and remembered answers. It misses
much that the sandbox and the check of every output stop. An honest `.half()` is a finding too, but boards do not show
it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

from harness.model import Finding

SCAN_S = 30.0
"""Time limit of the scanner. The slowest bundled submission takes 0.2 s (kernelguard 0.3.2, one core of an EPYC)."""

MAX_FINDINGS = 20


def scan(source: str) -> tuple[Finding, ...]:
    """The distinct findings in `source`. A failure of the scanner is a finding too, because a source could cause it on
    purpose.

    The scanner runs in its own process, because `source` may be written to exhaust a parser.
    """
    if importlib.util.find_spec("kernelguard") is None:
        return ()
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "kernelguard", "--api-mode"],
            input=source.encode("utf-8", "replace"),
            capture_output=True,
            env={**os.environ, "PYTHONUTF8": "1"},
            timeout=SCAN_S,
            check=True,
        )
        patterns = json.loads(done.stdout)["matched_patterns"]
        found = [Finding(rule=p["pattern"], severity=p["severity"], what=p["evidence"]) for p in patterns]
    except subprocess.TimeoutExpired:
        return (_unscanned(f"the scanner did not finish in {SCAN_S:g} s"),)
    except (subprocess.CalledProcessError, ValueError, KeyError, TypeError):
        return (_unscanned("the scanner failed on this source"),)
    return tuple(dict.fromkeys(found))[:MAX_FINDINGS]


def _unscanned(what: str) -> Finding:
    return Finding(rule="UNSCANNED", severity="high", what=what)

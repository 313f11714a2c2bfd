"""Static triage: what a scanner finds suspicious in the text of a submission. It flags; it never decides.

The scanner is KernelGuard (https://pypi.org/project/kernelguard/): rules about how entries to GPU kernel competitions
have cheated. It is optional, and without it nothing is flagged. It knows patched clocks and remembered answers; it
misses much that the sandbox and the check of every output stop, and an honest `.half()` is a finding, though one that
boards leave out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

from harness.model import Finding

SCAN_S = 30.0
"""The longest of the bundled submissions takes 0.2 s, all others less (kernelguard 0.3.2, one core of an EPYC)."""

MAX_FINDINGS = 20


def scan(source: str) -> tuple[Finding, ...]:
    """The findings in `source`, each once. A scanner that fails is a finding, for it might have been made to.

    In a process of its own: whoever wrote `source` may have written it to exhaust a parser.
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
        return (_unscanned(f"the scanner did not come to an end in {SCAN_S:g} s"),)
    except (subprocess.CalledProcessError, ValueError, KeyError, TypeError):
        return (_unscanned("the scanner failed on this source"),)
    return tuple(dict.fromkeys(found))[:MAX_FINDINGS]


def _unscanned(what: str) -> Finding:
    return Finding(rule="UNSCANNED", severity="high", what=what)

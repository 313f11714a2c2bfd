"""Rewrites the stored results of others.

verdict: runtime error
seen: FileNotFoundError|PermissionError|Read-only file system|no results are there
defence: D5, results can be neither read nor written
"""

from pathlib import Path

results = Path(__file__).parents[2] / "results"
(results / "podium_exploit.json").write_text("{}")
for run in results.rglob("*.json"):
    run.write_text(run.read_text().replace("5000", "5000000"))


def custom_kernel(data):
    return data[0] * 2

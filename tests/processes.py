"""What tests ask of processes that are not theirs to wait for."""

from pathlib import Path


def alive(pid: int | str) -> bool:
    """Whether it computes or could: a zombie cannot."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""The judge's side of a confined process: start it, wait for it, and kill it with all its descendants."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

from harness.errors import InfrastructureError
from harness.model import Device, Isolation
from harness.sandbox import bubblewrap, devices, footprint, forked, keeper, policy
from harness.sandbox.policy import MAX_DISK_BYTES, Policy
from harness.sandbox.program import Program
from harness.temporary import remove

COLLECT_S = 10.0
"""The time for the status of a process that has ended. Another thread of the judge may be collecting it, and Popen's
wait(0) would take that for a process that still runs."""

KILL_S = 30.0
TASKS, TASKS_PER_CPU = 1024, 16
"""The most processes and threads at once. Compilers and torch's thread pools need some for each processor."""

SHARE_OF_MEMORY = 0.75
_NONE = Path("/nonexistent")
"""Stands for a worker's directory in the environment of a fork server."""

_PASSED_ON = ("PATH", "LANG", "LD_LIBRARY_PATH", "CC", "CXX", "CUDA_HOME", "CUDA_PATH", "ROCM_PATH", "ROCM_HOME")


class Enclosure:
    """A process that runs `program`, which must call `confine_as_told` before anything else.

    `warm`: modules that it imports; then it is forked from a process that has imported them, unless bubblewrap starts
    it. It may use `device`. `scratch`: a directory made by `scratch.scratch`. `hidden`: directories in which it may
    read nothing. `environment` is added to the variables that compilers need. `pass_fds`: as for Popen. Raises OSError.
    """

    def __init__(
        self,
        program: Program | Sequence[str],
        isolation: Isolation,
        device: Device,
        scratch: Path,
        *,
        hidden: Iterable[Path] = (),
        environment: Mapping[str, str] = MappingProxyType({}),
        pass_fds: tuple[int, ...] = (),
        warm: Sequence[str] = (),
    ) -> None:
        work = scratch / "work"
        around = _clean_environment(work) | devices.visibility(device, isolation.one_gpu) | dict(environment)
        with contextlib.ExitStack() as stack:
            server = None
            if warm and isinstance(program, Program) and sys.platform == "linux" and not isolation.bubblewrap:
                server = stack.enter_context(forked.server(warm, _of_a_server(environment)))
            rules = _policy(isolation, device, scratch, hidden)
            self._uid = rules.uid
            self._report, report = os.pipe()
            settings = _settings(isolation, rules, work, report)
            fds = (*pass_fds, report)
            self._process: subprocess.Popen[bytes] | forked.Forked
            try:
                if server is not None:
                    assert isinstance(program, Program)
                    self._process = forked.Forked(server, program, settings, work, around, fds)
                else:
                    command = program.command() if isinstance(program, Program) else program
                    if isolation.bubblewrap:
                        command = bubblewrap.command(command, rules, work)
                    self._process = _started(command, settings, work, around, fds)
            except BaseException:
                os.close(self._report)
                raise
            finally:
                os.close(report)
        assert self._process.stdout is not None and self._process.stdin is not None
        self.stdout: IO[bytes] = self._process.stdout
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(rules.as_json().encode())

    @property
    def pid(self) -> int:
        """The first process of the enclosure, the ancestor of all others."""
        return self._process.pid

    def lives(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def processor_s(self) -> float:
        """Processor seconds of the process and its descendants so far, including those that ended and were waited
        for."""
        return footprint.processor_s(self._process.pid)

    def wait(self, timeout_s: float) -> int:
        """Wait until the process and all its descendants are gone. Returns the status as of Popen, negative for a
        signal.

        Raises subprocess.TimeoutExpired.
        """
        with contextlib.suppress(ProcessLookupError, AttributeError):  # gone already; macOS
            ended = os.pidfd_open(self._process.pid)
            try:
                has_ended = select.select([ended], [], [], timeout_s)[0]  # Popen would poll every 50 ms
            finally:
                os.close(ended)
            timeout_s = COLLECT_S if has_ended else 0
        return self._process.wait(timeout_s)

    def excess(self) -> str | None:
        """The limit that the ended process had exceeded: `took more than 8 GB of memory`. None if it had not."""
        os.set_blocking(self._report, False)
        with contextlib.suppress(BlockingIOError):
            return os.read(self._report, 4096).decode() or None
        return None

    def kill(self) -> None:
        """Kill the process and all its descendants. Raises InfrastructureError if that fails."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM if sys.platform == "linux" else signal.SIGKILL)
        try:
            self.wait(KILL_S)
        except subprocess.TimeoutExpired:
            self._kill_past_the_keeper()
        try:
            self.wait(KILL_S)
        except subprocess.TimeoutExpired:
            raise InfrastructureError(
                f"process {self._process.pid} cannot be killed: it hangs in the kernel, perhaps in the GPU's driver",
                "see what it waits for in /proc/PID/stack, and restart the machine or reset the GPU",
            ) from None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._uid is not None:
            _remove_shared_memory(self._uid)

    def _kill_past_the_keeper(self) -> None:
        """Kill the process groups of all its descendants, then the keeper itself, which may be stuck or busy."""
        groups = set()
        for pid in footprint.descendants(self._process.pid, footprint.process_table()):
            with contextlib.suppress(ProcessLookupError):
                groups.add(os.getpgid(pid))
        for group in groups - {os.getpgrp()}:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self._process.kill()

    def close(self) -> None:
        os.close(self._report)


def _started(
    command: Sequence[str], settings: Mapping[str, Any], folder: Path, environment: dict[str, str], fds: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    """Start `command`, on Linux under a keeper."""
    if sys.platform == "linux":
        kept = [keeper.__file__, json.dumps({**settings, "parent_pid": os.getpid()}), *command]
        command = [sys.executable, "-I", "-S", "-B", *kept]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=fds,
        start_new_session=True,
    )


def warm_up(modules: Sequence[str], environment: Mapping[str, str]) -> None:
    """Start the server of processes with these `warm` modules and this environment now, if there is none. It imports
    the modules meanwhile. Raises OSError."""
    with forked.server(modules, _of_a_server(environment)):
        pass


def _of_a_server(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server. Workers read PODIUM_ variables and their device only at work, so workers with other
    values share a server."""
    shared = {name: text for name, text in environment.items() if not name.startswith("PODIUM_")}
    return _clean_environment(_NONE) | shared


def _clean_environment(work: Path) -> dict[str, str]:
    """The environment: variables that compilers need, every cache in `work`, and nothing else of the judge's."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    programs = [str(Path(sys.executable).parent), *_absolute("PATH", os.defpath)]
    libraries = os.pathsep.join(_absolute("LD_LIBRARY_PATH"))
    environment.pop("LD_LIBRARY_PATH", None)
    return environment | {
        "PATH": os.pathsep.join(programs),  # ninja may be a Python package
        **({"LD_LIBRARY_PATH": libraries} if libraries else {}),
        "PYTHONPATH": os.pathsep.join([str(policy.ROOT), *_absolute("PYTHONPATH")]),
        "USER": "podium",  # the worker's own user id has no name
        "HOME": str(work),
        "TMPDIR": str(work),
        "XDG_CACHE_HOME": str(work / "cache"),
        "TRITON_CACHE_DIR": str(work / "cache" / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(work / "cache" / "inductor"),
        "TORCH_EXTENSIONS_DIR": str(work / "cache" / "extensions"),
    }


def _absolute(variable: str, default: str = "") -> list[str]:
    """The absolute entries of a search path. A relative or empty one would name the work directory, from where the next
    process, and its keeper outside the sandbox, would load what a submission has left there."""
    text = os.environ.get(variable, default)
    if variable == "LD_LIBRARY_PATH":
        text = text.replace(";", os.pathsep)  # the loader takes both for separators
    return [entry for entry in text.split(os.pathsep) if os.path.isabs(entry)]


def _policy(isolation: Isolation, device: Device, scratch: Path, hidden: Iterable[Path]) -> Policy:
    nodes = policy.device_nodes(devices.gpu_nodes(device, isolation.one_gpu))
    uid = (scratch / "work").stat().st_uid if isolation.own_uid else None
    # Without its own user id or mount namespace the worker could leave files in the host's /dev/shm forever.
    shared_memory = (footprint.SHARED_MEMORY,) if isolation.bubblewrap or uid is not None else ()
    needed = (sys.prefix, sys.base_prefix, str(policy.ROOT / "harness"), str(scratch / "work"))
    return Policy(
        work=str(scratch / "work"),
        read=(*policy.readable(hidden), str(scratch / "submission.py")),
        listed=policy.listed(),
        write=(str(scratch / "work"), *shared_memory),
        devices=nodes,
        landlock=isolation.landlock,
        seccomp=isolation.seccomp,
        uid=uid,
        groups=devices.groups_of(nodes),
        search=uid is not None and not isolation.bubblewrap and any(map(policy.is_closed_to_others, needed)),
        exposed=uid is None and not isolation.bubblewrap,
        judge_pids=tuple(dict.fromkeys((os.getpid(), os.getpgrp(), *forked.pids()))),
        max_tasks=_max_tasks() + (0 if uid is not None else _tasks_of_this_user()),
        max_data_bytes=_max_memory_bytes(),
    )


def _settings(isolation: Isolation, rules: Policy, work: Path, report_fd: int) -> dict[str, Any]:
    """The keeper's settings, without its parent's process id."""
    return {
        "judge_pid": os.getpid(),
        "report_fd": report_fd,
        "signals_are_statuses": isolation.bubblewrap,
        "max_memory_bytes": rules.max_data_bytes,
        "max_tasks": _max_tasks(),
        "max_disk_bytes": min(MAX_DISK_BYTES, shutil.disk_usage(work).free // 2),
        "max_files": policy.MAX_FILES,
        "folders": [str(work), str(work.parent / "shm")],
        "own_uid": -1 if rules.uid is None else rules.uid,
    }


def _max_tasks() -> int:
    return TASKS + TASKS_PER_CPU * (os.cpu_count() or 1)


def _tasks_of_this_user() -> int:
    """The tasks of this user id: the kernel's limit counts all of them together."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_uid == os.geteuid():
                total += len(os.listdir(entry / "task"))
    return total


def _max_memory_bytes() -> int:
    """A share of the machine's memory, or of the container's if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(path).read_text()))
    return int(SHARE_OF_MEMORY * total)


def _remove_shared_memory(uid: int) -> None:
    with contextlib.suppress(OSError):
        for path in Path(footprint.SHARED_MEMORY).iterdir():
            with contextlib.suppress(OSError):
                if path.lstat().st_uid != uid:
                    continue
                if path.is_dir() and not path.is_symlink():
                    remove(path)
                else:
                    path.unlink()  # there may be thousands, and `remove` starts a process for each

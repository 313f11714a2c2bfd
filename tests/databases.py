"""A PostgreSQL for the tests, on a socket in a temporary folder. PostgreSQL refuses root, so root starts it as
postgres.
"""

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path


def programs():
    """The folder of PostgreSQL's programs, or None."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    named = shutil.which("initdb")
    return found[-1].parent if found else Path(named).parent if named else None


class Postgres:
    """One cluster. `url`: its database. `stop` and `start`: shut it down and restart it. `fsync`: the setting; tests
    need no durable disk, measurements do."""

    def __init__(self, fsync="off"):
        self._fsync = fsync
        self._bin = programs()
        self._folder = Path(tempfile.mkdtemp(prefix="podium-pg-", dir="/tmp"))
        self._as = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        if self._as:
            shutil.chown(self._folder, "postgres")
        self._data = self._folder / "data"
        self._run("initdb", "-D", self._data, "-A", "trust", "-U", "podium", "-E", "UTF8", "--no-sync")
        self.start()

    @property
    def url(self):
        return f"postgresql://podium@/postgres?host={self._folder}"

    def _run(self, program, *words):
        command = [*self._as, str(self._bin / program), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=120)
        assert done.returncode == 0, done.stderr

    def start(self):
        options = f"-c listen_addresses= -c unix_socket_directories={self._folder} -c fsync={self._fsync}"
        self._run("pg_ctl", "-D", self._data, "-l", self._folder / "log", "-o", options, "-w", "start")

    def stop(self):
        self._run("pg_ctl", "-D", self._data, "-m", "immediate", "-w", "stop")

    def empty(self):
        """Drop all tables."""
        import psycopg

        until = time.monotonic() + 30
        while True:
            try:
                with psycopg.connect(self.url, autocommit=True) as connection:
                    connection.execute("DROP SCHEMA public CASCADE")
                    connection.execute("CREATE SCHEMA public")
                    return
            except psycopg.OperationalError:
                assert time.monotonic() < until
                time.sleep(0.2)

    def close(self):
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)

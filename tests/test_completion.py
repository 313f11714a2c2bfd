"""`completion`: the word `podium` and the words that a shell completes after it."""

import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import completion, main

CHECKOUT = Path(__file__).resolve().parents[1]
PATIENCE_S = 120
"""What a shell shows in a second on an idle machine it has shown by then on a busy one."""


@pytest.fixture
def completed(capsys, monkeypatch, toy_root):
    """What a shell offers for the last of `words`, in the toy checkout."""

    def ask(*words: str) -> list[str]:
        line = ["podium", "--root", str(toy_root), *words]
        for name, value in (("_PODIUM_COMPLETE", "bash_complete"), ("COMP_WORDS", " ".join(line))):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("COMP_CWORD", str(len(line) - 1))
        assert main([]) == 0
        streams = capsys.readouterr()
        assert streams.err == ""
        return [offered.partition(",")[2] for offered in streams.out.split()]

    return ask


def test_verbs_options_problems_devices_targets_and_files_are_offered(completed):
    assert completed("ev") == ["eval"]
    assert completed("eval", "--qu") == ["--quick"]
    for verb in ("eval", "verify", "report", "check", "leaderboard"):
        assert completed(verb, "d") == ["double"]
    assert completed("eval", "double", "--device", "c") == ["cpu", "cuda"]
    assert "gfx942" in completed("check", "double", "mine.py", "--target", "gfx9")
    assert completed("completion", "f") == ["fish"]


def test_a_line_that_is_wrong_so_far_is_answered_with_nothing(completed):
    assert completed("evla", "z") == []
    assert completed("--root", "/nowhere/at/all", "eval", "d") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_this_checkout_and_no_program_called_podium(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert script.count(sys.executable) == 2 and script.count(f"PYTHONPATH={CHECKOUT}") == 2
    assert f"_PODIUM_COMPLETE={shell}_complete" in script and "$+commands" not in script
    assert not {"$1)", f"{shell}_complete podium)"} & set(script.split())


def test_a_shell_without_a_script_is_named_with_those_that_have_one(podium):
    code, out, err = podium("completion", "tcsh")
    assert (code, out) == (2, "") and "bash" in err and "fish" in err


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_in_bash_the_word_runs_and_completes_from_any_directory(tmp_path):
    line = f"""
        eval "$({sys.executable} -m harness completion bash)"; cd {tmp_path}; mkdir harness
        COMP_WORDS=(podium eval kv_d) COMP_CWORD=2; _podium_completion podium; echo "${{COMPREPLY[*]}}"
        podium --version; podium show nobody; echo $?; complete -p podium
    """
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(["bash", "-c", line], cwd=CHECKOUT, env=environment, capture_output=True, text=True)
    offered, version, code, registered = done.stdout.splitlines()
    assert offered == "kv_decode" and version.startswith("Podium ") and code == "2"
    assert registered.endswith("-F _podium_completion podium")


class Terminal:
    """zsh at a terminal, without anybody's settings."""

    def __init__(self, folder):
        pid, self._fd = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "HOME": str(folder), "TERM": "dumb", "PS1": "> "})
        self._pid = pid

    def shows(self, words, typed):
        """Whether `words` come to stand on the screen after `typed`."""
        os.write(self._fd, typed.encode())
        seen = b""
        while words.encode() not in seen:
            if not select.select([self._fd], [], [], PATIENCE_S)[0]:
                return False
            seen += os.read(self._fd, 4096)
        return True

    def close(self):
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._fd)


@pytest.fixture
def checkout_and_folder(tmp_path):
    """A line for zsh and fish that goes to a folder with a file, in which a foreign `harness` lies too."""
    (tmp_path / "harness").mkdir()
    (tmp_path / "mine.py").touch()
    return f"cd {CHECKOUT}; {{}}; cd {tmp_path}", tmp_path


@pytest.mark.slow(ci=True)
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_in_zsh_the_tab_key_completes_verbs_problems_and_files_and_the_word_runs(checkout_and_folder):
    line, folder = checkout_and_folder
    script = f'autoload -U compinit; compinit -u -D; eval "$({sys.executable} -m harness completion zsh)"'
    terminal = Terminal(folder)
    try:
        assert terminal.shows("ready", f"{line.format(script)}; print re''ady\n")
        clear = "\x15"
        for begun, whole in (("ev", "eval "), ("eval kv_d", "eval kv_decode "), ("check mla mi", "check mla mine.py ")):
            assert terminal.shows(f"podium {whole}", f"{clear}podium {begun}\t")
        assert terminal.shows("Podium ", f"{clear}podium --version\n")
    finally:
        terminal.close()


@pytest.mark.slow(ci=True)
@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_in_fish_verbs_problems_and_files_are_offered_and_the_word_runs(checkout_and_folder):
    line, folder = checkout_and_folder
    script = line.format(f"{sys.executable} -m harness completion fish | source")
    script += "".join(f"; complete -C 'podium {words}'" for words in ("ev", "eval kv_d", "check mla mi"))
    environment = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(folder)}
    words = ["fish", "--no-config", "-c", f"{script}; podium --version; podium show nobody; echo $status"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    verb, problem, file, version, code = filter(None, done.stdout.splitlines())
    assert verb.startswith("eval\tJudge") and (problem, file) == ("kv_decode", "mine.py")
    assert version.startswith("Podium ") and code == "2"


def test_the_variable_is_the_one_that_the_script_sets():
    assert completion.VARIABLE in completion.script("zsh")

"""`check` runs a submission's code to compile it: what that does beyond its own directory has no effect.

Each deed is done where the file is imported for compiling. Where it is judged is what tests/adversarial is about.
"""

import json
import os
import socket
import textwrap
from pathlib import Path

import pytest
from test_check_verb import TRITON

from harness import catalog
from harness.cli import main
from harness.compile import compilation, tools
from harness.compile.processes import Job, Processes, isolation
from harness.model import NO_ISOLATION
from harness.sandbox import leavings

pytest.importorskip("triton")

ONLY_WHEN_COMPILED = "import os\nif not os.environ.get('TRITON_INTERPRET'):\n"


@pytest.fixture
def cache(tmp_path):
    """Where check keeps its results: not beneath the root, which is hidden anyway."""
    return tmp_path / "cache"


@pytest.fixture
def podium(toy_root, cache, capsys, monkeypatch):
    if not isolation().confines:
        pytest.skip("nothing here confines submissions")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))

    def run(source: str, *words: str) -> tuple[int, str]:
        path = toy_root / "mine.py"
        path.write_text(source)
        code = main(["--root", str(toy_root), "check", "double", str(path), "--target", "gfx942", "--no-run", *words])
        streams = capsys.readouterr()
        assert "Traceback" not in streams.err
        return code, streams.out

    return run


def deed(text: str) -> str:
    return ONLY_WHEN_COMPILED + textwrap.indent(textwrap.dedent(text), "    ")


def everything(root: Path) -> dict[str, bytes]:
    """What lies beneath `root` but for temporary files and what is kept."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.relative_to(root).parts[0] not in ("tmp", "cache")
    }


def results_in(cache: Path) -> list[Path]:
    return list((cache / "podium" / "check" / "results").glob("*.json"))


def processes_named(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if mark.encode() in (entry / "cmdline").read_bytes() and state != "Z":
                found.append(entry.name)
        except OSError:
            continue
    return found


# What an honest file is told


@pytest.mark.slow
def test_an_honest_file_is_compiled_with_its_resources(podium):
    code, out = podium(TRITON, "--json")
    (target,) = json.loads(out)["targets"]
    assert code == 0 and target["fault"] is None and target["launches"] == 3
    for kernel in target["kernels"]:
        assert kernel["vgprs"] > 0 and kernel["sgprs"] > 0 and kernel["occupancy"]["waves_per_simd"] > 0
        assert kernel["spills"] == 0
    # 15 is no multiple of 16, so Triton makes another specialisation of it.
    assert [kernel["cases"] for kernel in target["kernels"]] == [
        ["rows=64 cols=64", "rows=4 cols=8"],
        ["rows=3 cols=5"],
    ]


# What others try

WRITES = """
    for path in {paths!r}:
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write("forged")
        except OSError:
            continue
        raise SystemExit(f"wrote {{path}}")
"""


@pytest.mark.slow
def test_what_is_written_outside_its_directory_is_not_written(podium, toy_root, cache):
    podium(TRITON)  # so that there is something kept
    kept = {path: path.read_bytes() for path in results_in(cache)}
    assert len(kept) == 3  # the verdict, what the largest tensor is, and the compilation
    paths = [
        toy_root / "written",
        toy_root / "results" / "local" / "forged" / "double" / "forged.json",
        toy_root / "problems" / "double" / "reference.py",
        toy_root / "mine.py",
        toy_root / "tmp" / "written",
        Path.home() / ".podium-was-here",
        Path(leavings.__file__).with_name("was_here.py"),
        cache / "podium" / "check" / "results" / "forged.json",
        *kept,
    ]
    source = deed(WRITES.format(paths=[str(path) for path in paths])) + TRITON
    (toy_root / "mine.py").write_text(source)
    before = everything(toy_root)
    code, out = podium(source)
    assert code == 0 and "compiles for gfx942" in out and "wrote" not in out
    assert everything(toy_root) == before and not any("here" in path.name for path in paths if path.exists())
    assert {path: path.read_bytes() for path in kept} == kept and len(results_in(cache)) == 2 * len(kept)
    assert [path for path in (toy_root / "tmp").iterdir() if path.name.startswith("podium-")] == []


@pytest.mark.slow
def test_the_problem_and_other_submissions_and_what_is_kept_cannot_be_read(podium, toy_root, cache):
    podium(TRITON)
    other = toy_root / "submissions" / "double" / "other.py"
    other.write_text("a secret")
    paths = [toy_root / "problems" / "double" / "reference.py", other, *results_in(cache)]
    paths += [Path("/proc") / str(os.getpid()) / "environ", Path("/etc/shadow")]
    reads = f"""
        for path in {[str(path) for path in paths if path.exists()]!r}:
            try:
                text = open(path).read()
            except OSError:
                continue
            raise SystemExit(f"read {{path}}")
    """
    code, out = podium(deed(reads) + TRITON)
    assert code == 0 and "compiles for gfx942" in out


@pytest.mark.slow
def test_a_wrong_kernel_does_not_become_accepted_by_what_it_keeps_itself(podium, toy_root, cache):
    """It computes the key of its own judgement as check does, and keeps one for the second look."""
    facts = {"problem": catalog.load_problem(toy_root, "double").sha256, "tools": tools.fingerprint()}
    judgement = {"verdict": "accepted", "message": "all right", "report": None, "printed": "", "cases": ["a", "b"]}
    forges = f"""
        import hashlib
        os.environ["XDG_CACHE_HOME"] = {str(cache)!r}
        try:
            from harness.compile.kept import Kept
            own = hashlib.sha256(open(__file__, "rb").read()).hexdigest()
            Kept({{"submission": own, **{facts!r}}}).write("judgement", {judgement!r})
        except (ImportError, OSError):
            pass
    """
    wrong = deed(forges) + TRITON.replace("(2.0)", "(3.0)")
    assert podium(wrong)[0] == 10
    code, out = podium(wrong)
    assert code == 10 and "(cached)" not in out


@pytest.mark.slow
def test_a_daemon_does_not_outlive_the_check(podium):
    mark = f"podium-daemon-{os.getpid()}"
    daemon = f"""
        import subprocess, sys, time
        started, tell = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
                os.set_inheritable(tell, True)
                program = f"import os, time; os.write({{tell}}, b'1'); time.sleep(600)"
                os.execv(sys.executable, [sys.executable, "-c", program, {mark!r}])
            os._exit(0)
        os.wait()
        assert os.read(started, 1) == b"1"
    """
    code, out = podium(deed(daemon) + TRITON)
    assert code == 0 and "compiles for gfx942" in out  # so the daemon was there
    assert processes_named(mark) == []


@pytest.mark.slow
def test_nothing_reaches_the_network_from_it_or_from_a_child(podium):
    with socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        for listening in (tcp, udp):
            listening.bind(("127.0.0.1", 0))
            listening.settimeout(0.2)
        tcp.listen()
        program = textwrap.dedent(f"""
            import socket
            ports = {{socket.SOCK_STREAM: {tcp.getsockname()[1]}, socket.SOCK_DGRAM: {udp.getsockname()[1]}}}
            for kind, port in ports.items():
                try:
                    one = socket.socket(type=kind)
                    if kind == socket.SOCK_STREAM:
                        one.connect_ex(("127.0.0.1", port))
                    else:
                        one.sendto(b"reached", ("127.0.0.1", port))
                except OSError:
                    pass
        """)
        deeds = f"import subprocess, sys\nexec({program!r})\nsubprocess.run([sys.executable, '-c', {program!r}])\n"
        code, out = podium(deed(deeds) + TRITON)
        assert code == 0 and "compiles for gfx942" in out
        with pytest.raises(TimeoutError):
            tcp.accept()
        with pytest.raises(TimeoutError):
            udp.recv(16)


@pytest.mark.slow
def test_inline_hip_is_imported_where_it_can_do_no_harm_either(podium, toy_root):
    target = toy_root / "written"
    source = "from harness.hip import Module\n" + textwrap.dedent(f"""
        def custom_kernel(data):
            try:
                open({str(target)!r}, "w").write("x")
                open({str(toy_root / "problems/double/reference.py")!r}).read()
            except OSError as error:
                raise RuntimeError("refused") from error
            return data[0] * 2
    """)
    code, out = podium(source)
    assert code == 12 and "RuntimeError: refused" in out and not target.exists()


@pytest.mark.slow
def test_no_cache_is_shared_with_the_next_check(podium, cache):
    podium(TRITON)
    assert {path.suffix for path in cache.rglob("*") if path.is_file()} == {".json"}


# What it hands back


@pytest.mark.slow
def test_of_what_it_emits_only_regular_files_are_copied_and_its_links_lead_nowhere(podium, toy_root, tmp_path):
    secret = toy_root / "submissions" / "double" / "secret.txt"
    secret.write_text("a secret")
    links = f"""
        import pathlib
        made = pathlib.Path("emit/gfx942")
        made.mkdir(parents=True)
        (made / "link.ttir").symlink_to({str(secret)!r})
        os.mkfifo(made / "pipe.ttir")
        (made / "more").mkdir()
        (made / "..hidden").write_text("x")
    """
    code, _ = podium(deed(links) + TRITON, "--emit", str(tmp_path / "made"))
    names = {path.name for path in (tmp_path / "made" / "gfx942").iterdir()}
    assert code == 0 and {name.rpartition(".")[2] for name in names} >= {"ttir", "ttgir", "llir", "amdgcn"}
    assert not names & {"link.ttir", "pipe.ttir", "more", "..hidden"}


def test_links_pipes_second_names_strange_names_and_large_files_are_left(tmp_path, monkeypatch):
    monkeypatch.setattr(leavings, "MAX_FILE_BYTES", 10)
    monkeypatch.setattr(leavings, "MAX_BYTES", 25)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "file").write_text("secret")
    work = tmp_path / "work"
    folder = work / "emit" / "gfx942"
    folder.mkdir(parents=True)
    for name in ("a.ttir", "b.ttir", "c.ttir"):
        (folder / name).write_text("123456789")
    (folder / "large.ttir").write_text("12345678901")
    (folder / "new\nline").write_text("1")
    (folder / ".hidden").write_text("1")
    (folder / "link").symlink_to(tmp_path / "secret" / "file")
    os.link(tmp_path / "secret" / "file", folder / "hard")
    os.mkfifo(folder / "pipe")
    leavings.copy(work, "emit/gfx942", tmp_path / "made")
    assert {path.name for path in (tmp_path / "made").iterdir()} == {"a.ttir", "b.ttir"}
    (work / "elsewhere").symlink_to(tmp_path)
    leavings.copy(work, "elsewhere/secret", tmp_path / "nothing")
    leavings.copy(work, "not/there", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


@pytest.mark.slow(ci=True)
@pytest.mark.parametrize(
    "printed",
    [
        "import os; os.remove('printed'); os.symlink('/etc/passwd', 'printed')",
        "import os; os.remove('printed'); os.mkfifo('printed')",
        "import os; os.remove('printed'); os.mkdir('printed')",
        "import os; os.remove('printed')",
        "print('x' * (17 << 20))",
    ],
)
def test_a_document_that_is_no_file_of_a_document_s_size_counts_as_none(a_program, printed):
    name = a_program(printed)
    with Processes() as processes:
        processes.start([Job("job", (name,))])
        ((_, finished),) = processes.results()
    assert (finished.status, finished.printed) == (0, "")


@pytest.mark.parametrize(
    "changed",
    [
        {"launches": 10**400},
        {"launches": -1},
        {"launches": "many"},
        {"kernels": [{"kernel": "k"}] * (compilation.MAX_KERNELS + 1)},
        {"kernels": [{"kernel": "k", "vgprs": 1 << 60}]},
        {"kernels": [{"kernel": "k", "configuration": {"BLOCK": {"deep": []}}}]},
        {"kernels": [{"kernel": "k", "occupancy": {"waves_per_simd": "Infinity", "of": 1, "limited_by": ""}}]},
        {"fault": {"message": "m", "line": 0}},
        {"target": None},
    ],
)
def test_a_document_out_of_bounds_counts_as_none(changed):
    assert compilation.read(json.dumps({"target": "gfx942", **changed})) is None


def test_text_in_a_document_obeys_no_terminal_and_has_an_end():
    document = {"target": "gfx942", "kernels": [{"kernel": "\x1b[2Jk" + "x" * 10**5}]}
    (kernel,) = compilation.read(json.dumps(document)).kernels
    assert "\x1b" not in kernel.kernel and len(kernel.kernel) <= compilation.MAX_TEXT
    assert compilation.read("[" * 10**5) is None and compilation.read("\ud800") is None


@pytest.mark.slow
def test_a_report_of_its_own_making_is_of_itself_alone(podium):
    forged = json.dumps({"target": "sm_90", "triton": "9", "kernels": [{"kernel": "forged"}]})
    writes = f"open('printed', 'w').write({forged!r})\nos._exit(0)\n"
    code, out = podium(deed(writes) + TRITON)
    assert code == 11 and "the compiler ended without a report" in out and "forged" not in out


# Where nothing confines


@pytest.mark.slow
def test_where_nothing_confines_it_says_so_in_a_sentence_and_checks(toy_root, cache, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr("harness.compile.processes.tiers.strongest", lambda device: NO_ISOLATION)
    (toy_root / "mine.py").write_text(TRITON)
    code = main(["--root", str(toy_root), "check", "double", str(toy_root / "mine.py"), "--target", "gfx942"])
    streams = capsys.readouterr()
    assert code == 0 and "compiles for gfx942" in streams.out
    assert [line for line in streams.err.splitlines() if "nothing here confines submissions" in line]

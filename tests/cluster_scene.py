"""A cluster of two nodes on loopback, and what happens to it: run by test_cluster in namespaces of its own.

    unshare -n -p --fork --mount-proc python -m tests.cluster_scene ROOT FOLDER      writes FOLDER/found.json

Everything that it starts ends with its process namespace.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
from pathlib import Path

ROOT, FOLDER = Path(sys.argv[1]), Path(sys.argv[2])
HERE = Path(__file__).resolve().parents[1]
ADDRESS, CLIENT = "127.0.0.1:6397", "ray://127.0.0.1:10001"
SLEEPS = "import time\ntime.sleep({s})\ndef custom_kernel(data):\n    return data[0] * 2\n"
PATIENCE_S = 240
"""For what takes seconds where nothing else wants the processors."""


def prepare():
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for name, folder in (("HOME", "home"), ("TMPDIR", "tmp"), ("XDG_CACHE_HOME", "cache")):
        (FOLDER / folder).mkdir()
        os.environ[name] = str(FOLDER / folder)
    (FOLDER / "tmp").chmod(0o1777)
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]


prepare()

from harness import catalog  # noqa: E402
from harness.cli import main  # noqa: E402
from harness.cluster import batch, node  # noqa: E402
from harness.cluster.job import judge_job  # noqa: E402
from harness.cluster.pins import Pins  # noqa: E402
from harness.cluster.placement import Placement  # noqa: E402
from harness.cluster.watching import JobEnded  # noqa: E402
from harness.errors import PodiumError  # noqa: E402
from harness.library.request import Request  # noqa: E402
from harness.server.store import Database  # noqa: E402
from tests import mute_tasks  # noqa: E402


def processes(word):
    """Those whose command line has `word` in it, by number."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if word in (folder / "cmdline").read_bytes().decode(errors="replace") and state != "Z":
                found.append(int(folder.name))
    return sorted(found)


def judges():
    return processes("harness.library.warm_judge") + processes("harness.worker")


def workers():
    """The processes that run submissions."""
    return processes("harness.worker")


def until(look):
    """What `look` finds, as soon as it is anything."""
    end = time.monotonic() + PATIENCE_S
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def gone(look):
    """Whether `look` finds nothing any more."""
    return until(lambda: not look())


def ports():
    """All on which anything listens here."""
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                listening.add(int(words[1].rpartition(":")[2], 16))
    return sorted(listening)


class Scene:
    def __init__(self, placement):
        self.placement = placement
        self.problem = catalog.load_problem(ROOT, "double")
        self.device = placement.device("auto")
        self.lines = []

    def submission(self, name, source):
        path = ROOT / "submissions" / "double" / f"{name}.py"
        path.write_text(source)
        return catalog.load_submission(self.problem, path)

    def stored(self, name):
        return len(list((ROOT / "results" / "local").glob(f"double/*/*-{name}.json")))

    def judged(self, name, source, act=lambda line: None):
        """One submission, judged by a quick look; `act` is told each line in a thread of its own."""
        self.lines = []

        def told(line):
            self.lines.append(line)
            threading.Thread(target=act, args=(line,), daemon=True).start()

        submission = self.submission(name, source)
        (run,) = batch.judge(self.placement, ROOT, self.problem, [submission], self.device, True, told)
        return {
            "verdict": run.ending.verdict,
            "message": run.ending.message,
            "attempt": run.environment["cluster"]["attempt"],
            "output": run.output,
            "sha256": run.submission_sha256 == submission.sha256,
            "stored": self.stored(name),
            "lines": self.lines,
        }

    def over_the_command_line(self, name="good", address=ADDRESS):
        self.submission(name, SLEEPS.format(s=0) + f"# {name}\n")
        file = str(ROOT / "submissions" / "double" / f"{name}.py")
        done = podium("eval", "double", file, "--cluster", address, "--quick", "--json")
        board = json.loads(done.stdout or "{}")
        runs = [(run["ending"]["verdict"], run["environment"].get("cluster")) for run in board.get("runs", [])]
        return {"code": done.returncode, "runs": runs, "err": done.stderr[-2000:], "stored": self.stored(name)}

    def over_the_client(self):
        """The same by Ray's client, which takes no node where `eval` is typed; and its Ctrl-C."""
        found = self.over_the_command_line("client", CLIENT)
        return found | {"interrupted": self.interrupted("client_interrupted", CLIENT)}

    def killed(self, name="killed", times=1):
        begun = []

        def act(line):
            if "judged on" in line and len(begun) < times:
                begun.append(line)
                time.sleep(1)
                for number in processes("ray::Judging"):
                    os.kill(number, signal.SIGKILL)

        return self.judged(name, SLEEPS.format(s=6), act) | {"judges_gone": gone(judges)}

    def stopped(self):
        held = []

        def act(line):
            if "judged on" in line and not held:
                held.extend(processes("ray::Judging"))
                for number in held:
                    os.kill(number, signal.SIGSTOP)
            if "attempt 2" in line:
                for number in held:
                    os.kill(number, signal.SIGCONT)

        return self.judged("stopped", SLEEPS.format(s=1), act) | {"judges_gone": gone(judges)}

    def mute(self):
        """Two processes stop before their first word: the first as Ray makes it, the second as it is asked."""
        avoided, place = [], self.placement.place

        def placing(job, reference, avoid):
            avoided.append(sorted(avoid))
            return place(job, reference, avoid)

        self.placement._task, self.placement.place = mute_tasks.task, placing
        try:
            found = self.judged("mute", SLEEPS.format(s=1))
        finally:
            self.placement._task = judge_job
            del self.placement.place
        return found | {"avoided": avoided, "judges_gone": gone(judges)}

    def cancelled(self):
        begun, placed, ended = threading.Event(), [], []

        def work():
            submission = self.submission("cancelled", SLEEPS.format(s=300))
            request = Request(
                root=ROOT, problem="double", submission=submission, device=self.device.slug, depth="verdict"
            )
            try:
                self.placement.judge(request, lambda line: begun.set() if "judged on" in line else None, placed.append)
            except JobEnded as error:
                ended.append(error.message)

        thread = threading.Thread(target=work)
        thread.start()
        begun.wait(PATIENCE_S)
        until(workers)
        before = len(judges())
        placed[0].close()
        thread.join(PATIENCE_S)
        return {"before": before, "ended": ended, "judges_gone": gone(judges), "stored": self.stored("cancelled")}

    def interrupted(self, name="interrupted", address=ADDRESS):
        """Ctrl-C of `eval --cluster`."""
        self.submission(name, SLEEPS.format(s=300))
        file = str(ROOT / "submissions" / "double" / f"{name}.py")
        command = [sys.executable, "-m", "harness", "--root", str(ROOT), "eval", "double", file, "--cluster", address]
        with open(FOLDER / f"{name}.txt", "w") as log:
            evaluation = subprocess.Popen(command, stdout=log, stderr=log)
            until(workers)
            before = len(judges())
            evaluation.send_signal(signal.SIGINT)
            code = evaluation.wait(PATIENCE_S)
        return {"before": before, "code": code, "judges_gone": gone(judges), "stored": self.stored(name)}

    def confined(self):
        """What a submission reaches of Ray, and what is reached from outside the sandbox."""
        session = Path(self.placement.ray._private.worker._global_node.get_session_dir_path())
        token, sessions = str(FOLDER / "home" / ".ray" / "auth_token"), str(session.parent)
        listening = ports()
        open_here = [port for port in listening if not socket.socket().connect_ex(("127.0.0.1", port))]
        source = f"""
import os, socket
def custom_kernel(data):
    reached = []
    for port in {listening}:
        try:
            with socket.socket() as each:
                each.settimeout(2)
                if not each.connect_ex(("127.0.0.1", port)):
                    reached.append(port)
        except OSError:
            pass
    read = []
    for path in ({token!r}, {sessions!r}, {str(session)!r}, {str(session)!r} + "/logs"):
        try:
            read.append(os.listdir(path) if os.path.isdir(path) else open(path).read())
        except OSError:
            pass
    named = [name for name in os.environ if "RAY" in name or "PODIUM_NODE" in name]
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            if b"RAY_" in open(f"/proc/{{number}}/environ", "rb").read():
                named.append(number)
        except OSError:
            pass
    print("reached", reached, "read", read, "named", named, "nice", os.nice(0), flush=True)
    return data[0] * 2
"""
        there = Path(token).is_file() and (session / "logs").is_dir()
        return self.judged("confined", source) | {
            "ports": listening,
            "open_here": open_here,
            "there": there,
            "nice": os.nice(0),
        }

    def pinned(self):
        """Pins that no node has, and pins that a node sees to be others only as the job arrives."""
        torch = self.placement.nodes()[0].facts.torch
        found = {}
        for name, pinned in (("nobody", "1.0"), ("refused", torch.replace("+", "-") + "-")):
            self.placement._pins = Pins(torch=pinned)
            try:
                found[name] = self.judged(f"pins_{name}", SLEEPS.format(s=0)) | {"error": ""}
            except PodiumError as error:
                found[name] = {"error": str(error), "lines": self.lines}
        self.placement._pins = None
        return found

    def census(self):
        done = podium("cluster", "--address", ADDRESS, "--json")
        return {"code": done.returncode, "said": json.loads(done.stdout or "{}"), "err": done.stderr[-1000:]}

    def strange(self):
        """Somebody with another token."""
        strange = {**os.environ, "RAY_AUTH_TOKEN": "0" * 64}
        done = podium("cluster", "--address", ADDRESS, environment=strange)
        joined = joining("127.0.0.1", strange)
        join = joined.stderr.rpartition("Error: ")[2]
        twice = podium("node", "--address", ADDRESS)
        return {
            "code": done.returncode,
            "err": done.stderr[-1000:],
            "join": join,
            "twice": [twice.returncode, twice.stderr.rpartition("error: ")[2]],
        }

    def other_code(self):
        """A node with other code, though the sender's checkout is on its machine too; it dies, and joins again."""
        other, ip = FOLDER / "other", "127.0.0.3"
        shutil.copytree(HERE / "harness", other / "harness")
        (other / "harness" / "__init__.py").open("a").write("# another\n")
        # Ray may be in a folder of its own, which the variable names.
        path = os.pathsep.join([str(other), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}

        def leave():
            (raylet,) = processes(f"--node_ip_address={ip}")
            os.kill(raylet, signal.SIGKILL)
            until(lambda: any(not node["Alive"] and node["NodeManagerAddress"] == ip for node in ray.nodes()))

        def seen():
            found = [node for node in self.census()["said"]["nodes"] if node["address"] == ip]
            return [(node["alive"], node["wrong"]) for node in found]

        ray = self.placement.ray
        joining(ip, environment).check_returncode()
        first = seen()
        leave()
        dead = seen()
        joining(ip, environment).check_returncode()
        again = seen()
        leave()
        return {"first": first, "dead": dead, "again": again}

    def alive(self):
        return sum(each["Alive"] for each in self.placement.ray.nodes())

    def served(self):
        """A server that judges on the cluster: a verdict, a node that joins late and dies, one that is deleted while it
        is judged, and an end in mid-run."""
        write_competition()
        database = Database(str(ROOT / "results" / "server" / "podium.sqlite"))
        client = database.people.add("ada")
        good, deleted, slow = FOLDER / "good.py", FOLDER / "deleted.py", FOLDER / "slow.py"
        good.write_text(SLEEPS.format(s=0))
        deleted.write_text(SLEEPS.format(s=300))
        slow.write_text(SLEEPS.format(s=300) + "# slow\n")
        url, server = serve("served.txt")
        sent = []

        def runners():
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/runner_queue/CPU", timeout=5) as answer:
                return json.load(answer)["available_runners"]

        def send(file):
            sent.append(submitting(url, client, file))
            return until(lambda: [each for each in rows_of(database, client) if each.file_name == file.name])[0].id

        try:
            nodes = self.alive()
            before = until(runners)
            done = submitting(url, client, good)
            said = done.communicate(timeout=PATIENCE_S)[0]
            node.start(ROOT, False, ADDRESS, "127.0.0.4", print, beside=True)
            late = until(lambda: (runners() or 0) > before)
            for raylet in processes("--node_ip_address=127.0.0.4"):
                os.kill(raylet, signal.SIGKILL)
            until(lambda: "has left" in (FOLDER / "served.txt").read_text())
            number = send(deleted)
            deleted_judging = until(workers)
            ask = urllib.request.Request(
                f"{url}/user/submissions/{number}", method="DELETE", headers={"X-Popcorn-Cli-Id": client}
            )
            urllib.request.urlopen(ask, timeout=60).close()
            deleted_gone = gone(judges)
            until(lambda: database.queue.submission(number).state != "running")
            state = database.queue.submission(number).state
            number = send(slow)
            judging = until(workers)
            server.send_signal(signal.SIGTERM)
            code = server.wait(PATIENCE_S)
        finally:
            for each in (server, *sent):
                each.kill()
        database.queue.delete(number)  # the next server would judge it
        database.close()
        return {
            "nodes": nodes,
            "runners": before,
            "late": late,
            "submitted": done.returncode,
            "said": said[-2000:],
            "deleted": [bool(deleted_judging), deleted_gone, state],
            "judging": judging,
            "code": code,
            "judges_gone": gone(judges),
            "log": (FOLDER / "served.txt").read_text()[-3000:],
        }

    def node_died(self):
        """Of two nodes that judge, the one is killed that is not this process's own: its raylet and its worker."""
        killed, begun = [], []

        def act(line):
            if "judged on" in line:
                begun.append(line)
            if len(begun) == 2 and not killed:
                time.sleep(1)
                for number, raylet, is_own in self.judgings():
                    if not is_own and not killed:
                        killed.append(raylet)
                        os.kill(raylet, signal.SIGKILL)
                        os.kill(number, signal.SIGKILL)

        return self.of_two(("node_died", "node_stayed"), act) | {"killed": len(killed)}

    def left_alone(self):
        """Of two that are judged, the one on this process's own node loses its worker, and waits for the other node,
        which then leaves."""
        begun, lost = [], []

        def act(line):
            if "judged on" in line:
                begun.append(line)
                if len(begun) == 2:
                    time.sleep(1)
                    own = [number for number, _, is_own in self.judgings() if is_own]
                    os.kill(own[0], signal.SIGKILL)
            elif "attempt 1 is lost" in line:
                lost.append(line)
                if len(lost) == 1:
                    time.sleep(2)
                    for _, raylet, is_own in self.judgings():
                        if not is_own:
                            os.kill(raylet, signal.SIGTERM)  # it says so to the head, which would else notice late

        return self.of_two(("left_alone", "left_behind"), act)

    def judgings(self):
        """The processes of jobs, their raylets, and whether that is the one of this process's own node."""
        own = f"--raylet_socket_name={self.placement.ray._private.worker._global_node.raylet_socket_name}\0"
        for number in processes("ray::Judging"):
            parent = int(Path(f"/proc/{number}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            words = Path(f"/proc/{parent}/cmdline").read_text()
            if "--raylet_socket_name=" in words:
                yield number, parent, own in words

    def of_two(self, names, act):
        """What comes of two submissions that are judged at once, while `act` is told each line."""
        submissions = [self.submission(name, SLEEPS.format(s=8) + f"# {name}\n") for name in names]
        lines = []

        def told(line):
            lines.append(line)
            threading.Thread(target=act, args=(line,), daemon=True).start()

        runs = batch.judge(self.placement, ROOT, self.problem, submissions, self.device, True, told)
        node.start(ROOT, False, ADDRESS, "127.0.0.1", print, beside=True)  # later scenes have two nodes, too
        return {
            "verdicts": [run.ending.verdict for run in runs],
            "attempts": sorted(run.environment["cluster"]["attempt"] for run in runs),
            "stored": [self.stored(name) for name in names],
            "lines": lines,
        }


def serve(log_file):
    """A server's address and its process."""
    words = ["--root", str(ROOT), "serve", "--cluster", ADDRESS, "--port", "8123"]
    with open(FOLDER / log_file, "w") as log:
        return "http://127.0.0.1:8123", subprocess.Popen(
            [sys.executable, "-m", "harness", *words], stdout=log, stderr=log
        )


def write_competition():
    folder = ROOT / "configs" / "competitions"
    folder.mkdir(exist_ok=True)
    limits = "limits: {per_hour: 100, waiting: 10}\n"
    (folder / "double.yml").write_text(f"title: Twice\nproblem: double\n{limits}")


def submitting(url, client, file):
    """The process that sends a file and waits for its verdict; what it says comes by its stdout."""
    command = [sys.executable, "-m", "harness", "submit", str(file), "--mode", "test", "--json"]
    environment = {**os.environ, "PODIUM_SERVER": url, "PODIUM_CLIENT_ID": client}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def rows_of(database, client):
    return database.queue.of_user(database.people.by_client(client).id)


@contextlib.contextmanager
def held():
    """Within it no submission gets on: its process is stopped as soon as it is there. The judge of it goes on."""
    over = threading.Event()

    def hold():
        while not over.wait(0.1):
            for number in workers():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGSTOP)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def head_died():
    """kill -9 of the head while `eval` and a server judge. `eval` is typed again when there is another head, and the
    server goes on by itself."""
    os.environ.update({"RAY_gcs_rpc_server_reconnect_timeout_s": "5"})  # as Ray's 60 s, in less time
    begin_cluster(nodes=1)
    files = {name: ROOT / "submissions" / "double" / f"{name}.py" for name in ("headless_one", "headless_two")}
    for name, file in files.items():
        file.write_text(SLEEPS.format(s=3) + f"# {name}\n")
    words = ["eval", "double", "--quick", "--cluster", ADDRESS]
    write_competition()
    database = Database(str(ROOT / "results" / "server" / "podium.sqlite"))
    client = database.people.add("grace")
    url, server = serve("headless.txt")
    sending = []

    def stored():
        return {name for name in files if list((ROOT / "results" / "local").glob(f"double/*/*-{name}.json"))}

    try:
        with open(FOLDER / "eval.txt", "w") as log:
            command = [sys.executable, "-m", "harness", "--root", str(ROOT), *words, *map(str, files.values())]
            evaluation = subprocess.Popen(command, stdout=log, stderr=log)
        until(stored)  # the one node judges one, then the other
        with held():
            node.start(ROOT, False, ADDRESS, "127.0.0.1", print, beside=True)
            until(lambda: "serves" in (FOLDER / "headless.txt").read_text())
            for number in range(3):
                file = FOLDER / f"headless{number}.py"
                file.write_text(SLEEPS.format(s=1) + f"# {number} of grace\n")
                sending.append(submitting(url, client, file))
            judging = until(lambda: len(processes("ray::Judging")) == 2 and len(workers()) >= 2)
            running = database.queue.totals().get("running")
            for number in processes("gcs_server"):
                os.kill(number, signal.SIGKILL)
            code = evaluation.wait(PATIENCE_S)
            before = stored()
            main(["--root", str(ROOT), "node", "--stop"])
            judges_gone = gone(lambda: processes("ray::Judging") + judges())
        begin_cluster()
        again = podium(*words, *[str(file) for name, file in files.items() if name not in before]).returncode
        told = [each.communicate(timeout=PATIENCE_S)[0] for each in sending]
        server.send_signal(signal.SIGTERM)
        ended = server.wait(PATIENCE_S)
    finally:
        for each in (server, *sending):
            each.kill()
    with database.connections.reading() as rows:
        runs = [run for (run,) in rows("SELECT id FROM runs")]
    each = [len(database.queue.runs(row.id)) for row in rows_of(database, client)]
    database.close()
    return {
        "judging": judging,
        "running": running,
        "code": code,
        "said": (FOLDER / "eval.txt").read_text()[-1500:],
        "before": len(before),
        "judges_gone": judges_gone,
        "again": again,
        "after": len(stored()),
        "codes": [each.returncode for each in sending],
        "told": [text[-500:] for text in told],
        "runs": sorted(runs) == sorted(path.stem for path in (ROOT / "results" / "trials").glob("*/*/*.json")),
        "each": each,
        "ended": ended,
        "log": (FOLDER / "headless.txt").read_text()[-3000:],
    }


def begin_cluster(nodes=2):
    node.start(ROOT, True, None, "127.0.0.1", print, port=6397)
    for _ in range(nodes - 1):
        node.start(ROOT, False, ADDRESS, "127.0.0.1", print, beside=True)


def joining(ip, environment):
    """`podium node` of one more node of this machine, as it has ended. Its code is where PYTHONPATH says."""
    code = "import sys; from pathlib import Path; from harness.cluster import node\n"
    code += "root, address, ip = sys.argv[1:]; node.start(Path(root), False, address, ip, print, beside=True)"
    command = [sys.executable, "-P", "-c", code, str(ROOT), ADDRESS, ip]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=FOLDER)


def podium(*words, environment=None):
    command = [sys.executable, "-m", "harness", "--root", str(ROOT), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=2 * PATIENCE_S)


def play():
    found, chosen = {}, sys.argv[3:]
    if chosen != ["head_died"]:
        play_on_one_head(found, chosen)
    if not chosen or "head_died" in chosen:
        found["head_died"] = played("head_died", head_died)
        main(["--root", str(ROOT), "node", "--stop"])
        (FOLDER / "found.json").write_text(json.dumps(found, indent=1, default=str))


def played(name, scene):
    """What the scene found, or how it failed."""
    began = time.monotonic()
    try:
        return scene()
    except Exception:
        return {"failed": traceback.format_exc()}
    finally:
        print(name, f"{time.monotonic() - began:.1f} s", flush=True)


def play_on_one_head(found, chosen):
    begin_cluster(nodes=1 if chosen == ["killed"] else 2)  # of .ci/run, which has no time for another
    with contextlib.closing(Placement(ADDRESS, ROOT, silent_s=20, lonely_s=6)) as placement:
        scene = Scene(placement)
        scenes = {"lost": lambda: scene.killed("lost", 3)}
        names = [name for name in chosen if name != "head_died"] or [
            "over_the_command_line",
            "over_the_client",
            "census",
            "strange",
            "other_code",
            "killed",
            "lost",
            "stopped",
            "mute",
            "cancelled",
            "interrupted",
            "confined",
            "pinned",
            "node_died",
            "left_alone",
            "served",
        ]
        for name in names:
            found[name] = played(name, scenes.get(name) or getattr(scene, name))
            (FOLDER / "found.json").write_text(json.dumps(found, indent=1, default=str))
    found["left"] = {"stopped": main(["--root", str(ROOT), "node", "--stop"]), "ray": processes("raylet")}
    (FOLDER / "found.json").write_text(json.dumps(found, indent=1, default=str))


if __name__ == "__main__":
    play()

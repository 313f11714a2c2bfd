"""The verbs of a competition that others can enter: serve, user, submit and status."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from harness.cli.options import json_option, narrate, print_json, print_parts, verbs
from harness.errors import UsageError
from harness.model import Run, Verdict
from harness.render.document import Prose, Table
from harness.render.legible import legible
from harness.render.lists import submissions

if TYPE_CHECKING:
    from harness.server.store import Database

NEEDED = {"fastapi", "starlette", "uvicorn", "python_multipart", "multipart"}

database_option = click.option(
    "--database",
    metavar="URL",
    envvar="PODIUM_DATABASE",
    help="A file's path or postgresql://… (default: results/server/podium.sqlite; $PODIUM_DATABASE).",
)
server_option = click.option(
    "--server",
    metavar="URL",
    envvar=["PODIUM_SERVER", "POPCORN_API_URL"],
    help="The server's address ($PODIUM_SERVER).",
)


@verbs.command()
@click.option("--host", default="127.0.0.1", help="The address to listen on (default: 127.0.0.1, this machine alone).")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="The port (default: 8000).")
@click.option("--device", "devices", multiple=True, help="Judge on this card only: cpu, cuda:1. Any number of times.")
@click.option("--cluster", metavar="ADDRESS", help="Judge on a cluster's nodes: auto, HOST:PORT or ray://HOST:PORT.")
@click.option("--behind-proxy", is_flag=True, help="A local proxy names the client (X-Forwarded-For).")
@click.option(
    "--all-problems", is_flag=True, help="Show the stored runs of every problem, not only of the competitions."
)
@database_option
@click.pass_obj
def serve(
    root: Path,
    host: str,
    port: int,
    devices: tuple[str, ...],
    cluster: str | None,
    behind_proxy: bool,
    all_problems: bool,
    database: str | None,
) -> None:
    """Serve the competitions of configs/competitions to popcorn-cli and to browsers, and judge the submissions.

    $PODIUM_ADMIN_TOKEN is the administrator's token. Ctrl-C ends the server; queued submissions are judged after the
    next start.

    Example: python3 -m harness serve --port 8000
    """
    try:
        from harness.server.program import serve as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise UsageError(
            f"the server needs {error.name}, which is not installed",
            "in a checkout: make serve, or: pip install -c constraints.txt '.[server]'",
        ) from None
    token = os.environ.pop("PODIUM_ADMIN_TOKEN", None)  # judges must not inherit it, nor the database's password
    os.environ.pop("PODIUM_DATABASE", None)
    words = root, _url(root, database), host, port, devices, token or None
    if cluster is None:
        run(*words, behind_proxy=behind_proxy, all_problems=all_problems)
        return
    if devices:
        raise UsageError("--device does not go with --cluster, which uses the cards of its nodes", "leave out --device")
    from harness.cluster.link import Link
    from harness.server.log import say
    from harness.server.program import by_name

    def has() -> dict[str, tuple[str, ...]]:
        return by_name(link.models())

    with Link(cluster, root, patient=True, log=say) as link:
        run(*words, behind_proxy=behind_proxy, all_problems=all_problems, judge=link.judge, elsewhere=has)


@verbs.group("user")
def user() -> None:
    """Accounts of the server: who may submit.

    Example: python3 -m harness user add ada
    """


@user.command("add")
@click.argument("name")
@database_option
@json_option
@click.pass_obj
def add(root: Path, name: str, database: str | None, as_json: bool) -> None:
    """Create the account NAME if there is none, and print a new cli_id for it. The cli_id is shown only once.

    Example: python3 -m harness user add ada
    """
    _print_id(name, _database(root, database).people.add(name), as_json)


@user.command("revoke")
@click.argument("name")
@database_option
@json_option
@click.pass_obj
def revoke(root: Path, name: str, database: str | None, as_json: bool) -> None:
    """Invalidate every cli_id of the account NAME, sign its browsers out, and print a new cli_id, once.

    Example: python3 -m harness user revoke ada
    """
    _print_id(name, _database(root, database).people.revoke_clients(name), as_json)


@user.command("approve")
@click.argument("fingerprint")
@click.argument("name")
@database_option
@click.pass_obj
def approve(root: Path, fingerprint: str, name: str, database: str | None) -> None:
    """Give the client that registered as FINGERPRINT to the account NAME, which is created if there is none.

    A person who registers is told the FINGERPRINT at the first attempt to submit.

    Example: python3 -m harness user approve 3f9a1c2e77b0 ada
    """
    _database(root, database).people.approve(fingerprint.lower(), name)
    click.echo(legible(f"{fingerprint.lower()} is {name.lower()}'s"))


@user.command("list")
@database_option
@json_option
@click.pass_obj
def listed(root: Path, database: str | None, as_json: bool) -> None:
    """List the accounts and the clients that wait for approval.

    Example: python3 -m harness user list
    """
    people = _database(root, database).people
    accounts, pending = people.all(), people.pending()
    if as_json:
        print_json({"accounts": accounts, "pending": pending})
        return
    rows = [(each.name, each.created_at[:16], each.blocked_because or "") for each in accounts]
    parts: list[Any] = [Table(("account", "since", "blocked because"), rows)] if rows else [Prose("no accounts")]
    if pending:
        waiting = [(each.fingerprint, each.provider, each.created_at[:16]) for each in pending]
        parts.append(Table(("waits for approval", "provider", "since"), waiting))
    print_parts(parts, False)


@user.command("block")
@click.argument("name")
@click.option("--reason", required=True, help="The reason that the person is shown.")
@database_option
@click.pass_obj
def block(root: Path, name: str, reason: str, database: str | None) -> None:
    """Block the account NAME. An empty reason unblocks it.

    Example: python3 -m harness user block ada --reason "two accounts"
    """
    _database(root, database).people.block(name.lower(), _line(reason) or None)
    click.echo(legible(f"{name.lower()} is {'blocked' if _line(reason) else 'no longer blocked'}"))


@user.command("remove")
@click.argument("submission", type=click.IntRange(1))
@click.option("--reason", required=True, help="The reason, shown to everyone who looks for the submission.")
@database_option
@click.pass_obj
def remove(root: Path, submission: int, reason: str, database: str | None) -> None:
    """Take a SUBMISSION off its board, with the reason.

    Example: python3 -m harness user remove 12 --reason "answers from a table"
    """
    from harness.server import removal

    known = _database(root, database)
    if known.queue.submission(submission) is None:
        raise UsageError(f"there is no submission {submission}")
    if not _line(reason):
        raise UsageError("the reason is empty", "it is shown to everyone: say why")
    removal.remove(known, root, submission, _line(reason))
    click.echo(legible(f"submission {submission} is removed: {_line(reason)}"))


@verbs.command()
@click.argument("file", type=click.Path(path_type=Path))
@server_option
@click.option(
    "--competition", help="Its name (default: as FILE says in a line `#!POPCORN leaderboard …`, or the only one)."
)
@click.option("--gpu", help="The GPU (default: as FILE says, or the only one).")
@click.option(
    "--mode",
    type=click.Choice(["test", "benchmark", "leaderboard", "profile"]),
    default="leaderboard",
    help="test: the test cases alone; benchmark: a quick look; leaderboard (default): ranked; profile: where its time "
    "goes, if the competition allows it.",
)
@json_option
def submit(file: Path, server: str | None, competition: str | None, gpu: str | None, mode: str, as_json: bool) -> int:
    """Send FILE to a server, wait for its verdict and show the run. Exit codes are those of `eval`.

    Example: python3 -m harness submit mine.py --server https://kernels.example.org
    """
    from harness.server import client as clients

    client = _client(server, file)
    name, on = clients.choose(client, file, competition, gpu)
    number = client.submit(name, on, mode, file)
    return _show(client, client.wait(number, narrate), as_json, whole=False)


@verbs.command()
@click.argument("number", type=click.IntRange(1), required=False)
@server_option
@click.option("--competition", help="Only submissions to this competition.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, help="The most submissions to list (default: 20).")
@json_option
def status(number: int | None, server: str | None, competition: str | None, limit: int, as_json: bool) -> int:
    """List your own submissions to a server, or show submission NUMBER: its state and its run.

    The exit code of a finished submission is that of `eval`.

    Example: python3 -m harness status 12 --server https://kernels.example.org
    """
    client = _client(server)
    if number is not None:
        return _show(client, client.submission(number), as_json)
    found = client.submissions(competition, limit)
    if as_json:
        print_json({"submissions": found})
    elif found:
        print_parts([submissions(found)], False)
    else:
        click.echo("no submissions")
    return 0


def _show(client: Any, found: dict[str, Any], as_json: bool, whole: bool = True) -> int:
    """Print a submission, with its run in full or its verdict alone. Return the exit code."""
    run = client.run(found["id"]) if found["done"] else None
    own = found["podium"]
    if as_json:
        print_json({"submission": {**found, "code": None}, "run": run})
    else:
        state = own["state"] if found["done"] else found["job"]["status"]
        why = found["job"]["error"] if whole or run is None else None
        if why and not why.startswith(state):
            why = f"{state}: {why}"
        said = [f"submission {found['id']}: {legible(why or state)}"]
        parts: list[Any] = []
        if run is not None:
            from harness.render import run as rendered
            from harness.render.verdicts import failure, verdict_line

            shown = Run.model_validate(run)
            if whole:
                parts = rendered.parts(shown, every_report=False)
            else:
                said += [verdict_line(shown, stored=False), f"`status {found['id']}` shows it in full"]
                parts = [failure(shown, stored=False)] if shown.ending.verdict is not Verdict.ACCEPTED else []
        print_parts([Prose("\n".join(said)), *parts], False)
    if not found["done"]:
        return 0
    if own["verdict"] is None:
        return Verdict.INFRASTRUCTURE_ERROR.exit_code
    return Verdict(own["verdict"]).exit_code


def _client(server: str | None, file: Path | None = None) -> Any:
    """Connect to the server. A `file` to be sent is read first, so that an unreadable file is reported before a missing
    cli_id."""
    from harness.server import client as clients

    if not server:
        raise UsageError("say which server: --server https://…", "or set PODIUM_SERVER")
    known = clients.address(server)
    if file is not None:
        clients.read(file)
    return clients.Client(known, clients.client_id())


def _url(root: Path, database: str | None) -> str:
    return database or str(root / "results" / "server" / "podium.sqlite")


def _database(root: Path, database: str | None) -> Database:
    from harness.server.store import Database

    return Database(_url(root, database))


def _print_id(name: str, client: str, as_json: bool) -> None:
    if as_json:
        print_json({"name": name.lower(), "cli_id": client})
        return
    click.echo(f"cli_id: {client}")
    narrate(f"{name.lower()} puts this line into ~/.popcorn.yaml; it is not shown again")


def _line(text: str) -> str:
    from harness.server.verdicts import one_line

    return one_line(text)

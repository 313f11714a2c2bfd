"""The verbs for many machines: node and cluster. `eval --cluster` is part of `eval`."""

from __future__ import annotations

from pathlib import Path

import click

from harness.cli.options import json_option, markdown_option, narrate, print_json, print_parts, verbs
from harness.errors import InfrastructureError, UsageError


@verbs.command()
@click.option("--head", is_flag=True, help="Begin a cluster here.")
@click.option("--address", metavar="HOST:PORT", help="Join the cluster whose head is there.")
@click.option("--stop", is_flag=True, help="Stop the processes that `node` started on this machine.")
@click.option("--ip", metavar="ADDRESS", help="This machine's address in the cluster (default: Ray finds one).")
@click.option("--port", type=click.IntRange(1, 65535), default=6379, help="The head's port (default: 6379).")
@click.option("--block", is_flag=True, help="Stay until Ray ends, as Slurm and systemd expect.")
@click.pass_obj
def node(root: Path, head: bool, address: str | None, stop: bool, ip: str | None, port: int, block: bool) -> None:
    """Make this machine judge for a cluster: start Ray with this machine's cards, or stop it.

    Every node needs the same token: `node --head` creates one in ~/.ray/auth_token. See docs/cluster.md.

    Example: python3 -m harness node --address 10.0.0.1:6379
    """
    from harness.cluster import node as nodes

    if stop:
        if head or address:
            raise UsageError("--stop goes with neither --head nor --address")
        count = nodes.stop()
        narrate(f"{count} processes of Ray's have ended" if count else "no node runs here")
        return
    found = nodes.start(root, head, address, ip, narrate, block, port)
    cards = ", ".join(f"{count} × {slug}" for slug, count in found.counts.items())
    click.echo(f"this machine {'is a head' if head else 'has joined'}: {cards}; sandbox: {found.sandbox or 'none'}")


@verbs.command()
@click.option(
    "--address",
    default="auto",
    metavar="HOST:PORT",
    help="The cluster's head (default: this node's), or ray://HOST:PORT.",
)
@json_option
@markdown_option
@click.pass_obj
def cluster(root: Path, address: str, as_json: bool, as_markdown: bool) -> int:
    """Show the cluster's nodes: their cards, versions, running jobs and faults.

    Exit code: 30 if no node can judge, else 0.

    Example: python3 -m harness cluster --json
    """
    from harness.cluster import census, engine
    from harness.server import competition

    pinned = {name: each.pins for name, each in competition.load_all(root).items()}
    ray = engine.connect(address)
    try:
        nodes = census.take(ray, pinned)
    finally:
        ray.shutdown()
    if as_json:
        print_json(census.as_json(nodes))
    else:
        print_parts(census.parts(nodes), as_markdown)
    return 0 if any(node.facts for node in nodes) else InfrastructureError.exit_code

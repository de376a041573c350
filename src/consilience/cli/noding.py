"""Commands for federations without a server: keys, a node, and how things stand there."""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience.errors import UserError, printable

ConfigFile = Annotated[
    Path | None, typer.Argument(help="A YAML file with one method and one seed.", metavar="FILE")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes, e.g. rounds=5 deploy.quorum=all.", metavar="[KEY=VALUE]..."),
]
HINT = "the same command goes on where it was"


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    app.command()(certificates)
    app.command()(node)


def certificates(
    folder: Annotated[Path, typer.Argument(help="Where keys and certificates go.", metavar="DIR")],
    nodes: Annotated[int, typer.Option(help="How many nodes there are.", min=1)],
    days: Annotated[float, typer.Option(help="For how many days certificates are valid.")] = 365.0,
) -> None:
    """Make a test authority, and a key and a certificate for every node; what is there already stays.

    Whoever has the authority's key can be any node: keep it off the machines of nodes.
    """
    with installed():
        from consilience.deploy.zenoh.certificates import make
    for path in make(folder, nodes, days=days):
        print(path)


def node(
    file: ConfigFile = None,
    overrides: Overrides = None,
    number: Annotated[
        int | None, typer.Option("--id", help="Which node this is, from 0.", metavar="N", min=0)
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option("--certificates", help="The folder with authority.pem, node-N.pem, node-N.key."),
    ] = None,
    listen: Annotated[
        list[str] | None, typer.Option(help="Where neighbours reach it, e.g. tls/0.0.0.0:7447.")
    ] = None,
    connect: Annotated[
        list[str] | None, typer.Option(help="Where it reaches a neighbour, e.g. tls/10.0.0.7:7447.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Its own data, as `data` in a configuration: a name, package.module:function, or "
            "'{name: ..., options: {...}}'. By default the rows that the file's partition deals to node N."
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder for its files.", metavar="DIR")] = None,
    status: Annotated[
        Path | None, typer.Option(help="Show how things stand at the node with this --out.", metavar="DIR")
    ] = None,
) -> None:
    """Run one node of a federation without a server, or show how things stand at one."""
    if status is not None:
        show_status(status)
        return
    if file is None or number is None or keys is None or out is None:
        raise UserError("a node needs FILE, --id, --certificates and --out (or --status DIR alone)")
    code = run_node(file, overrides or [], number, keys, listen or [], connect or [], data, out)
    raise typer.Exit(code)


def run_node(
    file: Path,
    overrides: list[str],
    number: int,
    keys: Path,
    listen: list[str],
    connect: list[str],
    data: str | None,
    out: Path,
) -> int:
    """Run one node to its end, and return the exit code."""
    from consilience.config import load_config
    from consilience.deploy.agreeing import agree
    from consilience.deploy.files import own_data
    from consilience.experiment.folder import RunFolder

    with installed():
        from consilience.deploy.zenoh.certificates import credentials
        from consilience.deploy.zenoh.node import Node, Place
    place = Place(credentials(keys, number), listen, connect)
    if not listen and not connect:
        raise UserError("a node that neither listens nor connects hears nobody: give --listen or --connect")
    for option, endpoints in (("--listen", listen), ("--connect", connect)):
        for where in endpoints:
            if not re.fullmatch(r"tls/.+:\d+", where):
                raise UserError(f"{option} {where} is no address like tls/10.0.0.7:7447")
    agreement = agree(load_config(file, overrides))
    own = agreement.dealt(number) if data is None else agreement.brought(own_data(data))
    logging.basicConfig(format="%(message)s")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with RunFolder(out).locked():
        one = Node(agreement, number, own, out, place)
        print(f"node {number} with {own.samples} rows, terms {agreement.terms.run}", flush=True)
        try:
            peer = one.run()
        except KeyboardInterrupt:
            print(f"stopped; {HINT}", flush=True)
            return 130
    print(f"node {number} has ended round {peer.round} of {peer.terms.rounds}", flush=True)
    return 0


@contextmanager
def installed() -> Iterator[None]:
    """What is imported within it may not be installed, and then one line says so."""
    try:
        yield
    except ImportError as error:
        raise UserError(
            f'nodes need {error.name}, which is not installed: pip install "consilience[zenoh]"'
        ) from None


def show_status(folder: Path) -> None:
    """Print how things stand at a node."""
    from consilience.cli.screen import console
    from consilience.deploy.journal import read_status

    found = read_status(folder)
    if found is None or "neighbours" not in found:
        raise UserError(f"{folder}: no node has written here how things stand")
    for line in status_lines(found, time.time()):
        console().print(printable(line), markup=False, highlight=False)


def status_lines(found: dict[str, Any], now: float) -> list[str]:
    """How things stand at a node, in lines.

    Args:
        found: What the node has written.
        now: The time, in seconds.
    """
    ended = "ended" if found["done"] else f"round {found['round'] + 1}"
    scores = "".join(f", {name} {found[name]:.3f}" for name in found if name.endswith("accuracy"))
    lines = [
        f"node {found['member']} of run {found['run']}: {ended} of {found['rounds']}{scores}",
        f"written {max(0.0, now - found['time']):.0f} s ago, {found['sent']:,} bytes sent, "
        f"{found['refusals']} refused",
    ]
    for other, one in found["neighbours"].items():
        there = "there" if one["alive"] else "away"
        where = "" if one["round"] is None else f", round {one['round'] + 1}"
        old = "never heard" if one["staleness"] is None else f"{one['staleness']} rounds old"
        lines.append(f"  node {other}: {there}{where}, newest message {old}, {one['bytes']:,} bytes received")
    if found["waiting"]:
        lines.append(f"waiting for {', '.join(map(str, found['waiting']))}")
    return [*lines, *found.get("trouble", [])]

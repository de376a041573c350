"""Commands that write a federation's app and keep its sites at work."""

from __future__ import annotations

import signal
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from consilience.errors import UserError

ConfigFile = Annotated[Path, typer.Argument(help="A YAML file with one method and one seed.", metavar="FILE")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(help="Changes, e.g. rounds=5 deploy.quorum=all.", metavar="[KEY=VALUE]..."),
]


def register(app: typer.Typer, deploy_app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    deploy_app.command("flower")(flower)
    app.command()(site)


def flower(
    file: ConfigFile,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option(help="The app's folder.", metavar="APP")] = Path("app"),
) -> None:
    """Write a Flower app for a federation, which `flwr run APP` takes."""
    from consilience.config import load_config
    from consilience.deploy.agreeing import agree
    from consilience.deploy.flower.writing import write_app

    agreement = agree(load_config(file, overrides or []))
    for path in write_app(agreement, out):
        print(path)
    print(f"terms {agreement.terms.run}; run it with: flwr run {out}")
    if find_spec("flwr") is None:
        print("Flower is not installed here; where the app is to run: pip install 'consilience[flower]'")


def site(
    file: ConfigFile,
    client: Annotated[int, typer.Option(help="Which site this is, from 0.", metavar="N")],
    socket: Annotated[Path, typer.Option(help="The Unix socket at which it listens.")],
    out: Annotated[Path, typer.Option(help="The folder for what it must not forget.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Its own data, as `data` in a configuration: a name, package.module:function, or "
            "'{name: ..., options: {...}}'. By default those that the file's partition deals to client N."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(help="Where it trains: cpu, cuda:0, ..., or auto. By default the file's `device`."),
    ] = None,
) -> None:
    """Keep a site at work beside a SuperNode: it holds data and memory, and answers orders at a socket."""
    from consilience.deploy.agreeing import agree
    from consilience.deploy.files import federation_of, own_data
    from consilience.deploy.journal import Journal
    from consilience.deploy.resident import Resident, site_in, stationed
    from consilience.engine.determinism import repeatable

    config = federation_of(file, here=data is None, device=device)
    agreement = agree(config, config.torch_device)
    if agreement.terms.graph:
        raise UserError("this federation has no server: its members run `consilience node`")
    if not 0 <= client < agreement.terms.population:
        raise UserError(f"there is no site {client}: there are 0 to {agreement.terms.population - 1}")
    own = agreement.dealt(client) if data is None else agreement.brought(own_data(data))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with stationed(out, socket) as listener, repeatable(agreement.device, config.precision):
        resident = Resident(
            site_in(out, agreement, client, own), Journal(out, agreement.terms.run, str(client))
        )
        where = f"on {agreement.device}, at {socket}"
        print(f"site {client} with {own.samples} rows, terms {agreement.terms.run}, {where}", flush=True)
        try:
            resident.attend(listener)
        except KeyboardInterrupt:
            print("stopped; the same command goes on where it was")

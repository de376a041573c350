"""The ServerApp of a federation: a hub that speaks through Flower's Grid."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from consilience.deploy.agreeing import agree
from consilience.deploy.files import federation_of
from consilience.deploy.flower.carrier import GridCarrier
from consilience.deploy.journal import Journal
from consilience.deploy.serving import serve
from consilience.errors import UserError, abridged
from consilience.experiment.folder import RunFolder

NODES = "nodes.json"
"""Which node is which site, in the hub's folder."""


def server_app(file: Path) -> ServerApp:
    """The ServerApp of the federation that a file describes."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _speak()
        settings = context.run_config
        _check_settings(settings)
        folder = Path(str(settings["out"]))
        agreement = agree(federation_of(file, here=bool(settings["tested"])))
        journal = Journal(folder, agreement.terms.run, "hub")
        with RunFolder(folder).locked():
            carrier = GridCarrier(
                grid,
                agreement.terms.population,
                deadline=agreement.arm.config.deploy.deadline,
                file=folder / NODES,
                strict=bool(settings["strict"]),
                refused=journal.refuse,
            )
            serve(agreement, carrier, folder)

    return app


def _check_settings(settings: Mapping[str, object]) -> None:
    """Refuse a run configuration, of pyproject.toml or `flwr run --run-config`, that lacks something."""
    for name, kind in (("out", str), ("tested", bool), ("strict", bool)):
        found = settings.get(name)
        if not isinstance(found, kind) or not (kind is bool or str(found).strip()):
            wanted = "true or false" if kind is bool else "the name of a folder"
            raise UserError(f"run configuration: {name} is {wanted}, not {abridged(found)}")


def _speak() -> None:
    """Let the hub's own lines reach `flwr run --stream`, and not those of every request that Flower makes."""
    log = logging.getLogger("consilience")
    if not log.handlers:
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO)
        log.propagate = False

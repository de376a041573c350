"""The ServerApp of a federation: a hub that speaks through Flower's Grid."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from consilience.deploy.agreeing import agree
from consilience.deploy.files import federation_of
from consilience.deploy.flower.carrier import GridCarrier
from consilience.deploy.journal import Journal
from consilience.deploy.serving import serve
from consilience.experiment.folder import RunFolder

NODES = "nodes.json"
"""Which node is which site, in the hub's folder."""


def server_app(file: Path) -> ServerApp:
    """The ServerApp of the federation that a file describes."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        settings = context.run_config
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

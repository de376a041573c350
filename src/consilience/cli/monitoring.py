"""The command that shows a federation on a page."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command of this file to the command line."""
    app.command()(monitor)


def monitor(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="A run's folder, that of a hub, a node or several, or http://HOST:PORT of a monitor.",
            metavar="ADDRESS|RUN...",
        ),
    ],
    listen: Annotated[
        str, typer.Option(help="Where the page is served; port 0: any that is free.", metavar="HOST:PORT")
    ] = "127.0.0.1:8050",
    serve_only: Annotated[
        bool, typer.Option("--serve-only", help="No page: only what other monitors ask for.")
    ] = False,
) -> None:
    """Show a federation or a simulation live, on a page that is served from this machine."""
    from consilience.monitor.gathering import OFFER, Gathered
    from consilience.monitor.server import Server, listening

    host, port = listening(listen)
    with Server(Gathered(sources), host, port, page=not serve_only) as server:
        print(f"{server.url}{OFFER if serve_only else '/'} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()

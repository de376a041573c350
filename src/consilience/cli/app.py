"""The command line. Commands are thin: they read, call the library and print."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from consilience import __version__
from consilience.cli import deploying, monitoring, noding, reporting, reproducing, sweeping
from consilience.cli.interrupts import stoppable
from consilience.cli.screen import guard_log
from consilience.engine.spread.joining import begin
from consilience.errors import UserError, printable, unknown
from consilience.plain import read_yaml

app = typer.Typer(
    name="consilience",
    help="Federated learning that weighs each client's parameters by evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets on this machine.", no_args_is_help=True)
app.add_typer(data_app, name="data")
monitoring.register(app)
reporting.register(app)
sweeping.register(app)
reproducing.register(app)
deploy_app = typer.Typer(
    help="Real federations: members in processes and on machines of their own.", no_args_is_help=True
)
app.add_typer(deploy_app, name="deploy")
deploying.register(app, deploy_app)
noding.register(app)

ConfigFile = Annotated[
    Path, typer.Argument(help="A YAML file, e.g. examples/quickstart.yaml.", metavar="FILE")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Changes, e.g. rounds=5 solver.lr=0.01.", metavar="[KEY=VALUE]...")
]

PLOT_FORMATS = ("png", "pdf", "svg")
RunPath = Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")]
PlotFormat = Annotated[str, typer.Option("--format", help="The format of plots: png, pdf or svg.")]


def main() -> None:
    """The console script: bad input is one line and exit code 2."""
    guard_log()
    try:
        app()
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'file system'}: {error.strerror or error}")


def _fail(message: str) -> None:
    print(f"consilience: {printable(message)}", file=sys.stderr)
    sys.exit(2)


def _resumable(path: Path) -> AbstractContextManager[None]:
    """A run that is told to stop says how it can go on."""

    def hint() -> str:
        begun = (path / "config.yaml").exists()
        return f"go on with `consilience resume {path}`" if begun else "nothing was written yet"

    return stoppable(hint)


def _version(asked: bool) -> None:
    if asked:
        print(f"consilience {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command()
def run(
    file: ConfigFile,
    overrides: Overrides = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing run of this name.")
    ] = False,
    kind: PlotFormat = "png",
) -> None:
    """Run a configuration; its results go to OUT/NAME."""
    begin(_said_of_workers(file, overrides or []))
    from consilience import experiment
    from consilience.cli.display import display, show_result
    from consilience.config import load_config
    from consilience.experiment.folder import Existing, RunFolder

    _check_format(kind)
    config = load_config(file, overrides or [])
    folder = RunFolder(config.out / config.name)
    existing: Existing = "overwrite" if overwrite else "refuse"
    with _resumable(folder.path):
        result = experiment.run(config, folder=folder, existing=existing, listener=display())
    show_result(result, _drawn(folder.path, kind))


@app.command()
def resume(
    path: RunPath,
    changes: Annotated[
        list[str] | None,
        typer.Argument(
            help="More rounds, e.g. rounds=200; or other workers.",
            metavar="[rounds=N] [workers=N] [cluster=A]",
        ),
    ] = None,
    kind: PlotFormat = "png",
    previous: Annotated[
        bool,
        typer.Option(
            "--previous", help="Go on from the checkpoint before the last, where files are damaged."
        ),
    ] = False,
) -> None:
    """Continue a run from its last checkpoint; a complete one can be given more rounds."""
    begin(_said_of_workers(path / "config.yaml", changes or []))
    from consilience import experiment
    from consilience.cli.display import display, show_result

    _check_format(kind)
    with _resumable(path):
        result = experiment.resume(path, display(), previous=previous, **_changes(changes or []))
    show_result(result, _drawn(path, kind))


def _said_of_workers(file: Path, overrides: list[str]) -> dict[str, Any]:
    """What a file and changes seem to say of workers, at a glance: before torch is imported."""
    try:
        values = read_yaml(file.read_text(), str(file))
        changed = {key: read_yaml(value, key) for key, _, value in (one.partition("=") for one in overrides)}
    except (OSError, ValueError):  # whoever reads it in earnest says what is wrong
        return {}
    return {**values, **changed} if isinstance(values, dict) else {}


def _check_format(kind: str) -> None:
    """Refuse a format before anything is computed."""
    if kind not in PLOT_FORMATS:
        raise unknown("format", kind, PLOT_FORMATS)


def _drawn(path: Path, kind: str) -> list[Path]:
    """The plots of a run beside the images that every run has, where another format is asked for."""
    if kind == "png":
        return []
    from consilience.experiment.drawing import redraw

    return redraw(path, kind)


@app.command()
def plot(
    path: RunPath,
    kind: PlotFormat = "png",
    to: Annotated[
        Path | None, typer.Option(help="The folder where plots go; by default the run's.", metavar="DIR")
    ] = None,
) -> None:
    """Draw the plots of a run again, e.g. as vector graphics for a paper."""
    from consilience.experiment.drawing import redraw

    for file in redraw(path, kind, to):
        print(f"plot: {file}")


@app.command()
def export(
    path: Annotated[
        Path, typer.Argument(help="A run's folder, or a file below its weights/.", metavar="RUN")
    ],
    kind: Annotated[str, typer.Option("--format", help="onnx, or torch (torch.export).")] = "onnx",
    method: Annotated[str | None, typer.Option(help="The method, as the table calls it.")] = None,
    setting: Annotated[str | None, typer.Option(help="The setting, where there are several.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed; by default the first.")] = None,
    client: Annotated[str | None, typer.Option(help="Whose own model: a number, or a name.")] = None,
    to: Annotated[
        Path | None, typer.Option(help="Where to write; by default beside the model's own file.")
    ] = None,
) -> None:
    """Write a model of a run for other programs, once it is checked against the module."""
    from consilience.experiment.exporting import export as write
    from consilience.experiment.weights import find_weights, load_model

    file = find_weights(path, method, setting=setting, seed=seed, client=client)
    print(write(load_model(file), to or file, kind))


def _changes(changes: list[str]) -> dict[str, Any]:
    """What is asked for: more rounds or another place; nothing else can change once a run has begun."""
    found: dict[str, Any] = {}
    for change in changes:
        key, _, value = change.partition("=")
        if key == "cluster" and value:
            found[key] = value
        elif key in ("rounds", "workers") and value.isdecimal() and value.isascii():
            found[key] = int(value)
        else:
            raise UserError(
                f"{change!r}: a run that has begun takes no other change than rounds=200, workers=4 or "
                "cluster=ADDRESS"
            )
    return found


@app.command()
def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/methods.md.")] = False,
) -> None:
    """List the methods by family, the parts of which others can be composed, and what plugins add."""
    from consilience.cli.listings import method_table, methods_page, read_inventory, with_plugins
    from consilience.cli.screen import console

    inventory = read_inventory()
    if markdown:
        print(methods_page(inventory), end="")
    elif as_json:
        print(json.dumps(with_plugins(inventory)["methods"], indent=2))
    else:
        console().print(method_table(with_plugins(inventory)))


@app.command()
def models() -> None:
    """List the models."""
    from consilience.cli.listings import model_table, read_inventory, with_plugins
    from consilience.cli.screen import console

    console().print(model_table(with_plugins(read_inventory())))


@app.command()
def datasets() -> None:
    """List the data sets and whether they are on this machine."""
    from consilience.cli.listings import dataset_table
    from consilience.cli.screen import console

    console().print(dataset_table())


@app.command()
def partition(file: ConfigFile, overrides: Overrides = None, kind: PlotFormat = "png") -> None:
    """Show how a configuration splits the data, and draw it."""
    from consilience.cli.showing import show_partitions
    from consilience.config import load_config

    _check_format(kind)
    show_partitions(load_config(file, overrides or []), kind)


@app.command()
def topology(file: ConfigFile, overrides: Overrides = None, kind: PlotFormat = "png") -> None:
    """Show the graphs on which peers hear each other, and draw them."""
    from consilience.cli.showing import show_topologies
    from consilience.config import load_config

    _check_format(kind)
    show_topologies(load_config(file, overrides or []), kind)


@app.command()
def schema() -> None:
    """Print the JSON schema of configuration files, for editors."""
    from consilience.config.schema import config_schema

    print(json.dumps(config_schema(), indent=2))


@deploy_app.command("check")
def deploy_check(file: ConfigFile, overrides: Overrides = None) -> None:
    """Run a federation whose members exchange bytes, and compare it with its simulation.

    Members are objects in this process. Exit code 1 where anything differs.
    """
    from consilience.config import load_config
    from consilience.deploy.checking import check

    results = check(load_config(file, overrides or []))
    for one in results:
        print(one.line())
    if not all(one.equal for one in results):
        raise typer.Exit(1)


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="A data set; see `consilience datasets`.")]) -> None:
    """Download the published files of a data set and check them."""
    from consilience.data import get

    for path in get(name):
        print(path)

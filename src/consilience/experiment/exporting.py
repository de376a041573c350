"""Trained models for other programs: `torch.export` and ONNX, each checked before it is kept."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from consilience.errors import UserError, unknown
from consilience.experiment.weights import Predictor

ENDINGS = {"onnx": ".onnx", "torch": ".pt2"}
"""The formats, and how the names of their files end."""

ROWS = (2, 5)
"""The rows of the batch with which a model is traced, and of that with which the file is checked."""
TOLERANCE = 1e-4
"""How much a file's predictions may differ from the module's, relative to the largest (at least 1)."""


def export(predictor: Predictor, path: Path, kind: str) -> Path:
    """Write a model, preprocessing included, for batches of any size; a file that predicts otherwise goes.

    Args:
        predictor: What `load_model` gives.
        path: Where to write; the ending is that of the format.
        kind: `torch` for a program of `torch.export`, `onnx` for ONNX.
    """
    if kind not in ENDINGS:
        raise unknown("format", kind, ENDINGS)
    if kind == "onnx":
        missing = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
        if missing:
            raise UserError(f"ONNX needs {' and '.join(missing)}: pip install 'consilience[onnx]'")
    path = path.with_suffix(ENDINGS[kind])
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}")
    draft = path.with_name(f"draft-{path.name}")
    inputs = predictor.origin.example(ROWS[1])
    try:
        _write(predictor, draft, kind)
        found = _torch(draft)(inputs) if kind == "torch" else _onnx(draft)(inputs)
        _compare(predictor(inputs).detach(), found.detach(), path)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _write(predictor: Predictor, path: Path, kind: str) -> None:
    inputs = (predictor.origin.example(ROWS[0]),)
    batch = torch.export.Dim("batch")
    try:
        with warnings.catch_warnings(), _quiet("torch.onnx"):
            warnings.simplefilter("ignore")  # about the exporter's own code
            program = torch.export.export(predictor, inputs, dynamic_shapes=({0: batch},))
            if kind == "torch":
                torch.export.save(program, path)
            else:
                made: Any = torch.onnx.export(program, inputs, dynamo=True, verbose=False)
                made.save(path)
    except Exception as error:  # exporters raise errors of many kinds
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"this model cannot be exported as {kind}: {why:.200}") from None


class _quiet:  # noqa: N801
    """A context in which a logger says nothing but errors."""

    def __init__(self, name: str) -> None:
        self.logger = logging.getLogger(name)

    def __enter__(self) -> None:
        self.before = self.logger.level
        self.logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        self.logger.setLevel(self.before)


def _torch(path: Path) -> Callable[[Tensor], Tensor]:
    program: Callable[[Tensor], Tensor] = torch.export.load(path).module()
    return program


def _onnx(path: Path) -> Callable[[Tensor], Tensor]:
    """What runs an ONNX file: the runtime where it is installed, else the reference of the format."""
    session: Any
    if importlib.util.find_spec("onnxruntime") is not None:
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        (name,) = (one.name for one in session.get_inputs())
    else:
        import onnx.reference

        session = onnx.reference.ReferenceEvaluator(str(path))
        (name,) = session.input_names
    return lambda inputs: torch.from_numpy(session.run(None, {name: inputs.numpy()})[0])


def _compare(expected: Tensor, found: Tensor, path: Path) -> None:
    """Refuse a file that predicts something else than the module, beyond rounding."""
    same = expected.shape == found.shape
    apart = (expected.double() - found.double()).abs().max().item() if same else float("inf")
    if not apart <= TOLERANCE * max(1.0, expected.abs().max().item()):
        raise UserError(
            f"{path.name} would predict otherwise than the model, by {apart:.3g}; it was not kept"
        )

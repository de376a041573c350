"""Does a method keep the contract? `check_algorithm` runs it through everything that the engine relies on.

    from consilience.testing import check_algorithm

    def test_my_method() -> None:
        check_algorithm(MyMethod(strength=0.5))

Each property is a function whose docstring says what it claims. `PROPERTIES` has them in the order in which
they are checked: first what the method's functions do, then what the engine makes of them. Federations
are tiny and ragged, and arithmetic is float64 wherever equality up to rounding is claimed.
"""

from __future__ import annotations

import dataclasses
import logging

import torch

from consilience.algorithm import Algorithm
from consilience.learning.solvers import Solver
from consilience.testing.federation import (
    CLASSES,
    INPUTS,
    SOLVERS,
    TOPOLOGIES,
    DoesNotApplyError,
    Module,
    Property,
    Subject,
    convolutional,
    linear,
    perceptron,
)
from consilience.testing.properties import PROPERTIES

__all__ = [
    "CLASSES",
    "INPUTS",
    "PROPERTIES",
    "DoesNotApplyError",
    "Property",
    "Subject",
    "check_algorithm",
    "check_property",
    "convolutional",
    "linear",
    "perceptron",
    "prepare",
]


def check_algorithm(
    algorithm: Algorithm, *, module: Module | None = None, solver: Solver | None = None, device: str = "cpu"
) -> dict[str, str]:
    """Check that a method has all `PROPERTIES`; gives those that do not apply to it, each with the reason.

    Args:
        algorithm: The method, with the options to check.
        module: Makes the model to train, from inputs [batch, 6] to 3 logits; by default a small perceptron,
            or a linear layer where the method is for such models alone.
        solver: The local optimiser; by default SGD, with momentum and weight decay where the method allows.
        device: Where to compute.

    Raises:
        AssertionError: The message names the method, the property that it lacks and what was found.
    """
    subject = prepare(algorithm, module=module, solver=solver, device=device)
    skipped: dict[str, str] = {}
    for one in PROPERTIES:
        try:
            check_property(one, subject)
        except DoesNotApplyError as reason:
            skipped[one.__name__] = str(reason)
    return skipped


def prepare(
    algorithm: Algorithm, *, module: Module | None = None, solver: Solver | None = None, device: str = "cpu"
) -> Subject:
    """What `check_property` needs; the arguments are those of `check_algorithm`.

    The setting is the first that the method accepts in as many topologies as it ever does.
    """
    build = module or (linear if algorithm.linear_only() else perceptron)
    subjects: list[Subject] = []
    reasons: set[str] = set()
    for holdout in (False, True):
        for chosen in SOLVERS if solver is None else (solver,):
            every = Subject(algorithm, chosen, build, TOPOLOGIES, holdout, torch.device(device))
            refusals = {topology: every.refusal(algorithm, chosen, topology) for topology in TOPOLOGIES}
            accepted = tuple(topology for topology, reason in refusals.items() if reason is None)
            subjects.append(dataclasses.replace(every, topologies=accepted))
            reasons |= {reason for reason in refusals.values() if reason}
    best = max(subjects, key=lambda subject: len(subject.topologies))
    assert best.topologies, f"{algorithm.name} refuses every setting: {'; '.join(sorted(reasons))}"
    return best


def check_property(one: Property, subject: Subject) -> None:
    """Check one of the `PROPERTIES`; whatever goes wrong becomes an AssertionError that names it.

    Raises:
        AssertionError: The method lacks it.
        DoesNotApplyError: It says nothing about this method.
    """
    log = logging.getLogger("consilience")
    level = log.level
    log.setLevel(logging.ERROR)  # uploads are rejected here on purpose
    try:
        one(subject)
    except DoesNotApplyError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
        raise AssertionError(
            f"{subject.algorithm.name} lacks the property {one.__name__}: {one.__doc__} "
            f"Found: {_hint(error)}{kind}{error}"
        ) from error
    finally:
        log.setLevel(level)


def _hint(error: Exception) -> str:
    """What torch's refusals to map a function over clients mean for a method."""
    if ".item()" in str(error) or "data-dependent" in str(error):
        return "Python code that depends on a tensor's value; torch.where works for many clients at once. "
    if "randomness" in str(error):
        return "random numbers that are not the engine's. "
    return ""

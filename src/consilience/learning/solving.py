"""Linear systems and minima over named tensors, where a matrix is known by its products alone.

A Hessian is a function from a vector to its product, over a client's whole data one pass over its batches.
Client code runs for many clients at once, so nothing here looks at a number to decide what to do next: all
clients take the same iterations, and one that has stopped stays where it is. Numbers that are not finite are
never taken for a reason to stop: they reach the result, which is then rejected where it is screened.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from consilience import tree
from consilience.types import Number, Params

Product = Callable[[Params], Params]
"""A linear operator: from a vector to the product of a symmetric matrix with it."""

SHRINK, TRIALS, DECREASE = 4.0, 10, 0.1
"""How a step is searched: how much shorter each trial is than the one before, how many there are, and the
share of the decrease foretold by the slope that is enough."""

ROUNDING = 10
"""How many times the type's epsilon, relative to the largest seen, a curvature of rounding alone may be."""


def damped(product: Product, damping: Number) -> Product:
    """The operator A + damping I."""
    return lambda vector: tree.axpy(damping, vector, product(vector))


def conjugate_gradients(product: Product, target: Params, iterations: int, tolerance: Number = 0.0) -> Params:
    """An approximate solution x of A x = b by conjugate gradients from 0 (Hestenes, Stiefel 1952).

    Where A turns out not to be positive along a direction (Steihaug 1983), the iterate before it is given;
    along the first direction, which is b itself, b is given. So x.b > 0 unless b is 0: where b is a gradient,
    -x leads down.

    Args:
        product: A, symmetric.
        target: b.
        iterations: The most products that are taken.
        tolerance: Iterates stay as they are once the residual is at most this part of b, by their norms. One
            of rounding alone, the type's epsilon, always is enough.
    """
    enough = _square_of_enough(target, tolerance)
    solution, residual, direction = tree.zeros_like(target), target, target
    size = tree.sq_norm(residual)
    stopped, steepest = size <= enough, torch.zeros_like(size)
    for number in range(iterations):
        along = product(direction)
        curvature = tree.dot(direction, along)
        # Along a direction that the matrix maps to 0 the curvature is rounding of either sign.
        quotient = curvature / tree.sq_norm(direction)
        steepest = torch.maximum(steepest, quotient.abs())
        bent = quotient <= ROUNDING * torch.finfo(quotient.dtype).eps * steepest
        length = torch.where(bent, 1.0 if number == 0 else 0.0, size / curvature)
        length = torch.where(stopped, 0.0, length)
        solution = tree.axpy(length, direction, solution)
        residual = tree.axpy(-length, along, residual)
        before, size = size, tree.sq_norm(residual)
        stopped = stopped | bent | (size <= enough)
        direction = tree.axpy(torch.where(stopped, 0.0, size / before), direction, residual)
    return solution


def richardson(
    product: Product,
    target: Params,
    rate: Number,
    iterations: int,
    start: Params | None = None,
    tolerance: Number = 0.0,
) -> Params:
    """An approximate solution x of A x = b by Richardson's iteration x <- x + rate (b - A x).

    It converges where 0 < rate < 2 / (the largest eigenvalue of A) and A is positive; from 0, n iterations
    give rate sum_{j<n} (I - rate A)^j b.

    Args:
        product: A.
        target: b.
        rate: The step, above 0.
        iterations: How many iterations are taken at most, 1 or more.
        start: Where to start; by default from 0, and the first iteration then takes no product.
        tolerance: Iterates stay as they are once the residual is at most this part of b, by their norms.
    """
    enough = tree.sq_norm(tree.scale(tolerance, target))
    solution = tree.scale(rate, target) if start is None else start
    stopped = torch.zeros_like(enough, dtype=torch.bool)
    for _ in range(iterations - (start is None)):
        residual = tree.sub(target, product(solution))
        stopped = stopped | (tree.sq_norm(residual) <= enough)
        solution = tree.axpy(rate * (~stopped).to(enough.dtype), residual, solution)
    return solution


def trial_rates(longest: Number, like: Params) -> Tensor:
    """[trials] the rates that a search for a step tries, from the longest to the shortest.

    Args:
        longest: The first of them.
        like: Tensors whose type and device they get.
    """
    some = next(iter(like.values()))
    return longest * SHRINK ** -torch.arange(TRIALS, dtype=some.dtype, device=some.device)


def backtracked(now: Tensor, trials: Tensor, rates: Tensor, slope: Tensor) -> Tensor:
    """The largest rate with f(x - rate p) <= f(x) - DECREASE rate p.g (Armijo 1966); 0 where none is such.

    What rounding may add to f(x) is allowed: near a minimum the decrease is less than that.

    Args:
        now: 0-d, f(x).
        trials: [trials] f(x - rate p).
        rates: [trials] the rates, in the type in which x is known.
        slope: 0-d, p.g.
    """
    rounding = torch.finfo(rates.dtype).eps * now.abs()
    fine = trials <= now - DECREASE * rates * slope + rounding
    return torch.where(fine, rates, 0.0).amax()


def newton_minimum(
    value: Callable[[Params], Tensor],
    gradient: Callable[[Params], Params],
    product: Callable[[Params, Params], Params],
    start: Params,
    steps: int,
    iterations: int,
    tolerance: Number = 0.0,
) -> Params:
    """A minimum of a function by Newton's method: conjugate gradients for each step, then a search along it.

    The function does not rise by more than rounding, even where it is not convex.

    Args:
        value: The function, 0-d.
        gradient: Its gradient.
        product: The product of its Hessian at a point, the first argument, with a vector.
        start: Where to start.
        steps: How many steps are taken.
        iterations: How many iterations of conjugate gradients each step takes at most.
        tolerance: The relative residual at which these stop.
    """
    point, rates = start, trial_rates(1.0, start)
    for _ in range(steps):
        slopes = gradient(point)
        direction = conjugate_gradients(partial(product, point), slopes, iterations, tolerance)
        trials = torch.stack([value(tree.axpy(-rate, direction, point)) for rate in rates.unbind()])
        rate = backtracked(value(point), trials, rates, tree.dot(direction, slopes))
        point = tree.axpy(-rate, direction, point)
    return point


def _square_of_enough(target: Params, tolerance: Number) -> Tensor:
    """0-d, the squared norm of a residual that is small enough."""
    epsilon = torch.finfo(next(iter(target.values())).dtype).eps
    least = tolerance.clamp(min=epsilon) if isinstance(tolerance, Tensor) else max(tolerance, epsilon)
    return tree.sq_norm(tree.scale(least, target))

"""Linear systems and minima over named tensors, where a matrix is known by its products alone.

A Hessian is a function from a vector to its product, over a client's whole data one pass over its batches.
Client code runs for many clients at once, so nothing here looks at a number to decide what to do next: all
clients take the same iterations, and one that has stopped stays where it is. Numbers that are not finite are
never taken for a reason to stop: they reach the result, which is then rejected where it is screened.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from consilience import tree
from consilience.types import Number, Params

Product = Callable[[Params], Params]
"""A linear operator: from a vector to the product of a symmetric matrix with it."""

ROUNDING = 10
"""How many times the type's epsilon, relative to the largest seen, a curvature of rounding alone may be."""


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


def _square_of_enough(target: Params, tolerance: Number) -> Tensor:
    """0-d, the squared norm of a residual that is small enough."""
    epsilon = torch.finfo(next(iter(target.values())).dtype).eps
    least = tolerance.clamp(min=epsilon) if isinstance(tolerance, Tensor) else max(tolerance, epsilon)
    return tree.sq_norm(tree.scale(least, target))

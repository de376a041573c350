"""HWA where the server sees no client's model, but sums alone: under Flower's SecAgg+.

SecAgg+ gives a server the mean of what clients send, weighted by their numbers of examples n_k, and nothing
of any one of them. HWA needs two sums, that of r_k w_k and that of r_k, with r_k the curvature of unit norm.
So a client sends, for the layers that carry curvature,

    w_k,    c r_k w_k / n_k,    c r_k / n_k,

of which the weighted means are the mean model and both sums times the same number. c is the largest number of
examples that SecAgg+ was told (`max_weight`), so that nothing is lost when it rounds. A coordinate of which
the sum of r_k is no more than what rounding makes of it has the mean model's value.

It fits rules that need sums alone. A guard, a median and a look at single messages do not go with masks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.common import FitRes, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.client_proxy import ClientProxy
from flwr.server.strategy import FedAvg
from torch import Tensor

from consilience.errors import UserError

Arrays = list[npt.NDArray[Any]]

RELIABLE = 100
"""How many times the error of rounding a sum of curvatures must be to count."""


def for_sums(
    params: Mapping[str, Tensor],
    importance: Mapping[str, Tensor],
    examples: int,
    max_weight: float = 1000.0,
) -> Arrays:
    """What a client sends in place of its model's arrays.

    Args:
        params: The trained model's arrays, by name.
        importance: The curvature of some of them, as `curvature` gives it.
        examples: How many examples the client has.
        max_weight: As the SecAggPlusWorkflow was told.
    """
    if not 0 < examples <= max_weight:
        raise UserError(f"{examples} examples are more than the max_weight of {max_weight:g}: raise it")
    unknown = importance.keys() - params.keys()
    if unknown:
        raise UserError(f"there is curvature of {sorted(unknown)}, and no such array")
    factor = max_weight / examples
    products = [factor * importance[name] * params[name] for name in importance]
    weights = [factor * importance[name] for name in importance]
    return [value.detach().cpu().double().numpy() for value in (*params.values(), *products, *weights)]


class SecureHWAStrategy(FedAvg):
    """HWA under SecAgg+: give it to Flower's `DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(...))`.

    Clients are NumPyClients with `secaggplus_mod`, whose `fit` returns `for_sums(...)` and their number of
    examples. It gets the model's arrays alone.

    Args:
        weighted: The places, among the model's arrays, of those that carry curvature, in the clients' order.
        max_weight: As the workflow was told; so is the next.
        clipping_range: The largest number that is not clipped.
        quantization_range: In how many steps numbers are rounded.
        options: Those of Flower's FedAvg.
    """

    def __init__(
        self,
        weighted: Sequence[int],
        *,
        max_weight: float = 1000.0,
        clipping_range: float = 8.0,
        quantization_range: int = 4194304,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._weighted, self._max_weight = tuple(weighted), max_weight
        self._step = 2 * clipping_range / quantization_range

    def aggregate_fit(
        self, server_round: int, results: list[tuple[ClientProxy, FitRes]], failures: list[Any]
    ) -> tuple[Parameters | None, dict[str, Any]]:
        """The merged model; every result holds the same mean."""
        if not results:
            return None, {}
        arrays = parameters_to_ndarrays(results[0][1].parameters)
        total = sum(one.num_examples for _, one in results)
        # A client's number is off by at most a step; the mean is the sum times max_weight over all examples.
        noise = len(results) * self._step * self._max_weight / total
        return ndarrays_to_parameters(self._merged(arrays, RELIABLE * noise)), {}

    def _merged(self, arrays: Arrays, least: float) -> Arrays:
        count = len(self._weighted)
        model, products, weights = arrays[: -2 * count], arrays[-2 * count : -count], arrays[-count:]
        for place, product, weight in zip(self._weighted, products, weights, strict=True):
            known = weight > least
            model[place] = np.where(known, product / np.where(known, weight, 1.0), model[place])
        return model

"""DONE: local Newton directions for the global gradient, by Richardson's iteration.

Dinh, Tran, Nguyen, Bao, Balef, Zhou, Zomaya: DONE: Distributed Approximate Newton-type Method for Federated
Edge Learning (IEEE Transactions on Parallel and Distributed Systems 2022). With g = sum_k p_k grad F_k(w)
from a first exchange, p_k the shares of the data and H_k the Hessian of F_k at w, client k takes `iterations`
steps

    d_k <- (I - rate H_k) d_k - rate g    from d_k = 0,    and then    w <- w + lr sum_k p_k d_k.

After R steps -d_k, which is what clients send here, is rate sum_{j<R} (I - rate H_k)^j g: one step is
gradient descent, many approach the Newton direction. They converge where rate < 2 / (the largest eigenvalue
of H_k); where they do not, nothing says so but the length of d_k, so choose `rate` well below. Along
directions in which a Hessian is not positive d_k grows as well.

Deviations: products are those of the whole data, not of a mini-batch that is drawn once a round. With
`start: gradient` the iteration begins at -g, as in the authors' release; in the paper it begins at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, final

from consilience.algorithm import Family
from consilience.algorithms.mean_direction import MeanDirection
from consilience.client import Client
from consilience.errors import UserError
from consilience.learning.solving import richardson
from consilience.rules.by_data import Weighting
from consilience.sweeping import check_non_negative
from consilience.types import Params, State


@final
@dataclass(frozen=True)
class DONE(MeanDirection):
    """Clients approach Newton directions by Richardson's iteration; the server goes along their mean.

    Attributes:
        lr: The step along the mean direction.
        rate: The step of Richardson's iteration.
        iterations: How many of its steps a client takes, each a pass over its data.
        start: Where the iteration begins: at 0 or at the gradient.
        weighting: How clients count in all means.
    """

    name: ClassVar[str] = "done"
    paper: ClassVar[str] = "Dinh et al., IEEE Transactions on Parallel and Distributed Systems 2022"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "d_k <- (I - rate H_k) d_k - rate g, R times; w <- w + lr mean_k d_k"
    choose: ClassVar[str] = (
        "As giant, where products must be few and simple and a bound on curvature is known."
    )
    lr: float = 1.0
    rate: float = 0.01
    iterations: int = 20
    start: Literal["zero", "gradient"] = "zero"
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        check_non_negative(self, "lr", "rate")
        if self.iterations < 1:
            raise UserError(f"done: iterations must be at least 1, not {self.iterations}")

    def direction(self, client: Client, model: State, gradient: Params) -> Params:
        start = gradient if self.start == "gradient" else None
        return richardson(partial(client.hvp, model), gradient, self.rate, self.iterations, start)

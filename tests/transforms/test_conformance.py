"""Methods with changed messages have every property that the engine relies on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from consilience.algorithm import Algorithm
from consilience.algorithms.dechw import DecHW
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.fedlin import FedLin
from consilience.algorithms.fedsgd import FedSGD
from consilience.algorithms.hwa import HWA
from consilience.algorithms.scaffold import Scaffold
from consilience.testing import PROPERTIES, Property, check_property, prepare
from consilience.testing.properties import snapshots_continue
from consilience.transforms.clipped import Clipped
from consilience.transforms.compressed import Compressed
from consilience.transforms.noised import Noised
from consilience.transforms.until import Until

CASES: dict[str, Algorithm] = {
    "noised hwa": Noised(0.1)(HWA()),
    "top_k fedavg": Compressed(one_in=5)(FedAvg()),
    "top_k fedlin": Compressed(one_in=5)(FedLin()),
    "int8 dechw": Compressed("int8", mixing=0.9)(DecHW()),
    "all three fedsgd": Compressed("int8", error_feedback=False)(Noised(0.1)(Clipped(0.1)(FedSGD()))),
    "sparse fedcurv": Compressed(one_in=5)(FedCurv(one_in=10)),
    "hwa then fedavg": Until(HWA(), 1, FedAvg()),
    "fedcurv then scaffold": Until(FedCurv(), 1, Clipped(0.1)(Scaffold())),
}
NOT_HELD = {
    "client_order_does_not_matter": ("noised hwa", "all three fedsgd"),  # noise is drawn by client number
    "complete_graph_equals_star": ("top_k fedavg", "int8 dechw"),  # peers compress something else
}
"""Where a property cannot hold, and why."""


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("case", CASES)
def test_changed_method_has_property(case: str, one: Property) -> None:
    subject = prepare(CASES[case])
    subjects = [subject]
    if one is snapshots_continue:  # with some clients missing where the topology allows it
        subjects = [replace(subject, topologies=(topology,)) for topology in subject.topologies[:2]]
    for chosen in subjects:
        if case in NOT_HELD.get(one.__name__, ()):
            with pytest.raises(AssertionError, match="differs by"):
                check_property(one, chosen)
        else:
            check_property(one, chosen)

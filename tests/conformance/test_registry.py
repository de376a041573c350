"""Every method of the registry, with its default options and with others, has every property."""

from __future__ import annotations

import pytest
import torch

import consilience as cs
from consilience.algorithm import Algorithm
from consilience.algorithms import METHODS
from consilience.algorithms.bl1 import BL1
from consilience.algorithms.dane import DANE
from consilience.algorithms.dechw import DecHW, DecHWStar
from consilience.algorithms.desa import DESA
from consilience.algorithms.done import DONE
from consilience.algorithms.dpsgd import DPSGD
from consilience.algorithms.fagh import FAGH
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.feddane import FedDANE
from consilience.algorithms.fedma import FedMA
from consilience.algorithms.fednl import FedNL
from consilience.algorithms.fedprox import FedProx
from consilience.algorithms.fedsso import FedSSO
from consilience.algorithms.giant import GIANT
from consilience.algorithms.hwa import HWA
from consilience.algorithms.kfac_weighted import KFACWeighted
from consilience.algorithms.scaffold import Scaffold
from consilience.algorithms.swa import SWA
from consilience.method import Composed
from consilience.objectives.base import Objective
from consilience.objectives.proximal import Proximal
from consilience.rules.by_data import ByData
from consilience.rules.hessian_weighted import HessianWeighted
from consilience.server_steps.relax import Relax
from consilience.testing import PROPERTIES, Property, check_property, prepare

CASES: dict[str, Algorithm] = {
    **{name: method() for name, method in METHODS.items()},
    # Little work, and no draws by client number: clients that change places would draw other numbers.
    "desa": DESA(ipc=2, iterations=2, width=4, depth=2, anchors_per_step=None, start="common"),
    # Less work: every iteration is a pass over the data, and thirty of them in a network that is not convex
    # make 1e-9 of the last digit.
    "dane": DANE(newton_steps=1, iterations=2),
    "dane-inexact": DANE(eta=0.5, solve="inexact", weighting="samples"),
    "feddane-same": FedDANE(cohort="same"),
    "giant": GIANT(iterations=3),
    "giant-plain": GIANT(lr=0.1, damping=0.1, iterations=3, line_search=False, weighting="uniform"),
    "done": DONE(iterations=4),
    "fedsso-dfp": FedSSO("dfp", server_lr=0.05),
    "fedsso-bfgs": FedSSO("bfgs", server_lr=0.1, bound="quotient", per_step=True),
    # Few iterations: nothing depends on their number but time.
    "kfac_weighted": KFACWeighted(iterations=3),
    "kfac_weighted-all": KFACWeighted("all", "ggn", "none", iterations=3),
    "fedprox-zero": FedProx(mu=0.0),
    "fedcurv-zero": FedCurv(strength=0.0),
    "fedcurv-uncapped": FedCurv(strength=0.1, stiffness=None, fisher="batch_mean"),
    "fedcurv-sparse": FedCurv(one_in=3),
    "dpsgd-printed": DPSGD("combine_then_adapt"),
    "scaffold-I": Scaffold("I", server_lr=0.5),
    "hwa-last2-split": HWA("last2", "client_split", norm_scope="tensor"),
    "hwa-all-printed": HWA("all", "as_printed", "ggn", norm_scope="model"),
    "fagh-bias0": FAGH(row_index="bias0", curvature="as_printed"),
    "fagh-max_diag": FAGH(row_index="max_diag"),
    "fedma-square": FedMA(max_growth=0, fused="map"),
    "fedma-contrastive": FedMA(max_growth=0, contrastive=1.0),
    "fednl-search": FedNL("top_k", option="floor", initial="exact", line_search=True, l2=0.1),
    "fednl-cohorts": FedNL("power_sgd", partial=True, l2=0.1),
    "bl1-packed": BL1("top_k", one_in=2, broadcast_one_in=3, directions=5, eta=0.9, l2=0.1),
    "swa-renyi0.5": SWA("renyi0.5"),
    "swa-printed": SWA("renyi2", "as_printed", standardise=True),
    "swa-raw": SWA(sign="raw", standardise=True),
    "dechw-released": DecHW("released"),
    "dechw-ema": DecHW(accumulate="ema", beta=0.5),
    "dechw*-average": DecHWStar(until=1),
    "dechw*-freeze": DecHWStar(until=1, mode="freeze"),
    "dechw*-freeze-released": DecHWStar(until=1, mode="freeze", preset="released"),
    "proximal-hessian": Composed(Proximal(mu=0.1), HessianWeighted("all", kind="batch_sum")),
    "rollback-relax": Composed(Objective(early_stop="rollback"), ByData(), Relax(0.5)),
}


@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("case", CASES)
def test_method_has_property(case: str, one: Property) -> None:
    check_property(one, prepare(CASES[case]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("one", PROPERTIES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", METHODS)
def test_method_has_property_on_a_gpu(name: str, one: Property) -> None:
    check_property(one, prepare(CASES[name], device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("augment", [(), ("flip", "crop")], ids=["plain", "augmented"])
@pytest.mark.parametrize("lanes", [None, 1])
def test_streamed_data_give_the_results_of_resident_ones_on_a_gpu(
    lanes: int | None, augment: tuple[object, ...]
) -> None:
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (300, 3, 8, 8), dtype=torch.uint8, generator=random)
    classes = torch.arange(300) % 3
    data = cs.Dataset.from_arrays("images", images, classes, images[:50], classes[:50])
    digests = {
        cs.run(
            "fedavg",
            data={"name": "images", "own": data, "resident": resident},
            model={"name": "mlp", "hidden": [8]},
            augment=augment,
            local={"epochs": 2, "batch_size": 8},
            clients=5,
            rounds=3,
            lanes=lanes,
            device="cuda",
        ).digest
        for resident in ("always", "never")
    }
    assert len(digests) == 1

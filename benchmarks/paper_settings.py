"""Every method's setting in its own paper (or in the paper that compares it): model, batch, clients, cohort.

Local work is cut to a few steps, because memory and speed do not depend on how many there are. Data sets and
models that are not here have a stand-in, named in `instead`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Images:
    """Random images in place of a data set that is not here."""

    shape: tuple[int, int, int]
    classes: int
    rows: int


@dataclass(frozen=True)
class Setting:
    """One method in one setting of a paper."""

    source: str
    """Who has this setting."""
    data: str | Images
    config: dict[str, Any]
    """Keys of a configuration."""
    instead: str = ""
    """What stands in for what."""


STEPS = 8
"""How many local steps a round has; large models do fewer."""
CIFAR100 = Images((3, 32, 32), 100, 50_000)
EMNIST = Images((1, 28, 28), 47, 112_800)
SHAPES = {
    "mnist": Images((1, 28, 28), 10, 60_000),
    "fashion-mnist": Images((1, 28, 28), 10, 60_000),
    "cifar10": Images((3, 32, 32), 10, 50_000),
}
"""What published data sets look like; FEMNIST has writers besides, so that nothing can stand in for it."""

DIRICHLET = {"name": "dirichlet_class", "alpha": 0.5, "balance": True, "min_size": 10}
SPARSE = {"name": "erdos_renyi", "p": 0.2}
OTHER_CNN = "two 5x5 convolutions 20-50 and a layer of 500; the paper's have 64-64 and layers of 384 and 192"
RESNET = "ResNet-50 instead of ResNet-18"


def local(batch_size: int, steps: int = STEPS) -> dict[str, int]:
    """A section `local`."""
    return {"batch_size": batch_size, "steps": steps}


def sgd(lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> dict[str, Any]:
    """A section `solver`."""
    return {"name": "sgd", "lr": lr, "momentum": momentum, "weight_decay": weight_decay}


MCMAHAN: dict[str, Any] = {
    "partition": "shards",
    "clients": 100,
    "participation": 10,
    "model": "femnist-cnn",
}
PEERS: dict[str, Any] = {
    "partition": {"name": "dirichlet_class", "alpha": 0.2},
    "clients": 50,
    "topology": SPARSE,
    "local": local(100),
}
FASHION_PEERS = {**PEERS, "model": "fashion-cnn", "solver": sgd(0.001, 0.9)}
CIFAR_PEERS = {**PEERS, "model": "cifar-cnn", "solver": sgd(0.01, 0.9)}
WRITERS: dict[str, Any] = {
    "partition": "by_writer",
    "clients": 388,
    "participation": 10,
    "model": "pfl-cnn",
    "local": local(20),
    "solver": sgd(0.1),
}
HUNDRED: dict[str, Any] = {
    "partition": {"name": "dirichlet_client", "alpha": 0.3},
    "clients": 100,
    "model": "pytorch-cnn",
    "local": local(50),
    "solver": sgd(0.1),
}
MOON_PARTIES: dict[str, Any] = {
    "partition": DIRICHLET,
    "clients": 10,
    "local": local(64),
    "solver": sgd(0.01, 0.9, 1e-5),
}
TWO_CLASSES: dict[str, Any] = {
    "partition": "shards_two_classes",
    "clients": 10,
    "model": "cifar-cnn",
    "local": local(32),
    "solver": sgd(0.001, 0.9, 0.001),
}
FAGH: dict[str, Any] = {
    "partition": {"name": "dirichlet_class", "alpha": 0.2},
    "clients": 200,
    "participation": 0.4,
    "model": "fagh-cnn",
    "local": {"batch_size": 512},
}

COMPARED = "DecHW's comparison, Fashion-MNIST"
LESS_WIDE = "FEMNIST's CNN of 2048 hidden units; the paper's, with the same convolutions, has 512"

SETTINGS = {
    "fedavg": Setting("McMahan et al., MNIST", "mnist", {**MCMAHAN, "local": local(10)}, LESS_WIDE),
    # A gradient of all data: the batch is a client's 600 rows.
    "fedsgd": Setting("McMahan et al., MNIST", "mnist", {**MCMAHAN, "local": local(600)}, LESS_WIDE),
    "fedprox": Setting(
        "Li et al., MNIST",
        "mnist",
        {
            "partition": "shards",
            "clients": 1000,
            "participation": 10,
            "model": "logistic",
            "local": {**local(10), "stragglers": 0.5},
            "solver": sgd(0.03),
        },
        "shards of equal size instead of a power law",
    ),
    "local": Setting("MOON's tables, CIFAR-10", "cifar10", {**MOON_PARTIES, "model": "simple-cnn"}),
    "fedavgm": Setting(
        "Hsu, Qi, Brown, CIFAR-10",
        "cifar10",
        {**HUNDRED, "participation": 10, "local": local(64), "solver": sgd(0.01)},
        OTHER_CNN,
    ),
    "fedadagrad": Setting(
        "Reddi et al., federated EMNIST", "femnist", WRITERS, "388 of 3,400 writers, of LEAF's FEMNIST"
    ),
    "fedyogi": Setting(
        "Reddi et al., federated EMNIST", "femnist", WRITERS, "388 of 3,400 writers, of LEAF's FEMNIST"
    ),
    "fedadam": Setting(
        "Reddi et al., CIFAR-100",
        CIFAR100,
        {
            "partition": "iid",
            "clients": 500,
            "participation": 10,
            "model": "resnet50-cifar",
            "local": local(20, 2),
            "solver": sgd(0.1),
        },
        f"{RESNET}, random images",
    ),
    "fedcurv": Setting(
        "Shoham et al., MNIST",
        "mnist",
        {
            "partition": "homogeneous_blocks",
            "clients": 96,
            "model": "pytorch-cnn",
            "local": local(256),
            "solver": sgd(0.01),
        },
    ),
    "hwa": Setting(
        "Ahmad, Luo, Robles-Kelly, CIFAR-10, ten trials",
        "cifar10",
        {**TWO_CLASSES, "seeds": list(range(10))},
    ),
    "fisher_merge": Setting(
        "HWA's, CIFAR-10", "cifar10", TWO_CLASSES, "its own paper merges language models, once"
    ),
    "kfac_weighted": Setting("HWA's, CIFAR-10", "cifar10", TWO_CLASSES),
    "dechw": Setting("Ahmad et al., CIFAR-10", "cifar10", CIFAR_PEERS),
    # Both of its halves are run: curvature in the first two rounds, then none.
    "dechw*": Setting(
        "Ahmad et al., CIFAR-10", "cifar10", {**CIFAR_PEERS, "method": {"name": "dechw*", "until": 2}}
    ),
    "cfa": Setting(COMPARED, "fashion-mnist", FASHION_PEERS),
    "cfa-ge": Setting(COMPARED, "fashion-mnist", FASHION_PEERS),
    "decdiff": Setting(COMPARED, "fashion-mnist", FASHION_PEERS),
    "decdiff-vt": Setting(COMPARED, "fashion-mnist", FASHION_PEERS),
    "desa": Setting(
        "Huang et al., CIFAR-10-C",
        "cifar10",
        {
            "partition": "iid",
            "clients": 57,
            "topology": "complete",
            "model": "cifar-cnn",
            "local": local(32),
            "solver": sgd(0.01),
            "method": {"name": "desa", "iterations": 2},  # of 1000, each a pass over all data
        },
        "images that are not corrupted, a ConvNet of another width",
    ),
    "dpsgd": Setting(
        "Lian et al., CIFAR-10",
        "cifar10",
        {
            "partition": "iid",
            "clients": 7,
            "topology": "ring",
            "model": "vgg11",
            "local": local(128, 1),
            "solver": sgd(0.1),
        },
        "VGG-11 instead of ResNet-20",
    ),
    "gradient-tracking": Setting(
        "Nedic, Olshevsky, Shi",
        "mnist",
        {"partition": "iid", "clients": 12, "topology": SPARSE, "model": "logistic", "local": local(256)},
        "logistic regression on MNIST instead of small convex problems",
    ),
    "swa": Setting(
        "Chatzikonstantinou et al., CIFAR-10",
        "cifar10",
        {**MOON_PARTIES, "model": "vgg11", "local": local(256, 2), "solver": sgd(0.0005, 0.9)},
    ),
    "fedma": Setting(
        "Wang et al., CIFAR-10",
        "cifar10",
        {
            "partition": {"name": "dirichlet_class", "alpha": 0.5},
            "clients": 16,
            "model": {"name": "vgg11", "batch_norm": False},
            "local": local(64, 1),
            "solver": sgd(0.01, 0.9, 1e-4),
        },
        "VGG-11 instead of VGG-9",
    ),
    "gamf": Setting(
        "SWA's comparison, CIFAR-10",
        "cifar10",
        {
            **MOON_PARTIES,
            "model": {"name": "vgg11", "batch_norm": False, "bias": False},
            "local": local(256, 2),
            "solver": sgd(0.0005, 0.9),
        },
    ),
    "fagh": Setting("Sen, Qin, Krishna Mohan, Fashion-MNIST", "fashion-mnist", FAGH),
    "giant": Setting(
        "FAGH's comparison, Fashion-MNIST",
        "fashion-mnist",
        {**FAGH, "model": "logistic", "method": {"name": "giant", "iterations": 10}},
    ),
    "done": Setting(
        "Dinh et al., MNIST",
        "mnist",
        {
            "partition": "shards",
            "clients": 32,
            "model": "logistic",
            "local": {"batch_size": 512},
            "method": {"name": "done", "rate": 0.03, "iterations": 40},
        },
        "shards of equal size instead of different ones",
    ),
    "dane": Setting(
        "Shamir, Srebro, Zhang, MNIST",
        "mnist",
        {
            "partition": "iid",
            "clients": 16,
            "model": "logistic",
            "local": {"batch_size": 512},
            "method": {"name": "dane", "newton_steps": 2, "iterations": 10},
        },
        "ten classes and cross-entropy instead of two and a smoothed hinge loss",
    ),
    "feddane": Setting(
        "Li et al., federated EMNIST",
        "femnist",
        {**WRITERS, "model": "logistic", "local": local(10), "solver": sgd(0.003)},
        "388 writers of LEAF's FEMNIST instead of 200 with ten classes",
    ),
    "scaffold": Setting(
        "Karimireddy et al., EMNIST",
        EMNIST,
        {
            "partition": {"name": "dirichlet_client", "alpha": 0.3},
            "clients": 100,
            "participation": 20,
            "model": {"name": "mlp", "hidden": [200]},
            "local": local(225),
            "solver": sgd(0.1),
        },
        "random images, dealt by Dirichlet draws instead of sorted by label",
    ),
    "fednova": Setting(
        "Wang et al., CIFAR-10",
        "cifar10",
        {
            "partition": {"name": "dirichlet_class", "alpha": 0.1},
            "clients": 16,
            "model": "vgg11",
            "local": {**local(32, 4), "stragglers": 0.5},
            "solver": sgd(0.02, 0.9),
        },
    ),
    "feddc": Setting("Gao et al., CIFAR-10", "cifar10", {**HUNDRED, "participation": 15}, OTHER_CNN),
    "feddyn": Setting("Acar et al., CIFAR-10", "cifar10", {**HUNDRED, "participation": 10}, OTHER_CNN),
    "fedexp": Setting(
        "Jhunjhunwala, Wang, Joshi, CIFAR-10",
        "cifar10",
        {
            **HUNDRED,
            "participation": 20,
            "model": "resnet50-cifar",
            "local": local(50, 1),
            "solver": sgd(0.01, 0.0, 1e-4),
        },
        RESNET,
    ),
    "fedsso": Setting(
        "Ma et al., MNIST",
        "mnist",
        {
            "partition": "shards",
            "clients": 100,
            "model": {"name": "mlp", "hidden": [200, 200]},
            "local": local(32, 10),
            "solver": sgd(0.01),
        },
        "HWA's perceptron; the learning rate and ten local steps are those of the release",
    ),
    "fedga": Setting(
        "FAGH's comparison, CIFAR-10",
        "cifar10",
        {**FAGH, "model": "lenet5", "local": local(512, 1), "solver": sgd(0.01)},
    ),
    "fednl": Setting(
        "HWA's comparison, logistic regression on MNIST",
        "mnist",
        {
            "partition": "shards_two_classes",
            "clients": 10,
            "model": "logistic",
            # From no Hessian at all the first steps of option floor are gradient steps of rate 1000.
            "method": {"name": "fednl", "rank": 2, "option": "floor", "line_search": True},
        },
    ),
    "bl1": Setting(
        "Qian et al., logistic regression",
        "mnist",
        # As large as the eigenvalues that the first message leaves out.
        {"partition": "iid", "clients": 10, "model": "logistic", "method": {"name": "bl1", "mu": 0.1}},
        "ten classes of MNIST instead of LIBSVM's two",
    ),
    "fedlin": Setting(
        "Mitra et al., logistic regression",
        "mnist",
        {"partition": "shards", "clients": 20, "model": "logistic", "local": local(128), "solver": sgd(0.1)},
    ),
    "moon": Setting(
        "Li, He, Song, CIFAR-100",
        CIFAR100,
        {**MOON_PARTIES, "model": "resnet50-cifar", "local": local(64, 1)},
        "random images",
    ),
    "pfedme": Setting(
        "T. Dinh, Tran, Nguyen, MNIST",
        "mnist",
        {
            "partition": "shards",
            "clients": 20,
            "participation": 5,
            "model": {"name": "mlp", "hidden": [100]},
            "local": local(20, 20),
            "solver": sgd(0.005),
        },
    ),
}
"""The settings, by the names of the methods."""

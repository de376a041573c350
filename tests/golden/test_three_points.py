"""Every method on three points, against a derivation in NumPy that shares no code with the library.

The model is logistic regression with two inputs and two classes. With the inputs extended by a 1, x = (x1,
x2, 1), and the weights and biases in one matrix A [2, 3], the logits are A x. With p = softmax(A x), e the
one-hot label and d = p - e, one sample has

    gradient of the loss   d x'
    its squares            d^2 (x^2)'
    Hessian                (diag(p) - p p') (x) x x'

Local training takes two full-batch steps, so that no order of samples matters. Client 0 holds the first two
points and client 1 the third; on the graph each of three nodes in a line, 0 - 1 - 2, holds one point.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from consilience.algorithms.dechw import DecHW
from consilience.algorithms.fagh import FAGH
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.fedprox import FedProx
from consilience.algorithms.hwa import HWA
from consilience.algorithms.scaffold import Scaffold
from consilience.algorithms.swa import SWA
from consilience.data.dataset import Dataset
from consilience.data.partition import Partition
from consilience.engine.build import simulate
from consilience.engine.scene import Scene
from consilience.exchange.cohort import LocalWork
from consilience.graphs.line import Line
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD

POINTS = np.array([[1.0, -0.5], [0.5, 2.0], [-1.5, 0.75]])
LABELS = np.array([0, 1, 1])
START = np.array([[0.2, -0.4, 0.1], [-0.3, 0.5, 0.0]])
TWO_CLIENTS = (np.array([0, 1]), np.array([2]))
THREE_NODES = (np.array([0]), np.array([1]), np.array([2]))
RATE, STEPS, ROUNDS = 0.5, 2, 3


def extended(rows):
    return np.column_stack([POINTS[rows], np.ones(len(rows))])


def errors(model, rows):
    """p and d of some points, [points, 2]."""
    scores = np.exp(extended(rows) @ model.T)
    chances = scores / scores.sum(1, keepdims=True)
    return chances, chances - np.eye(2)[LABELS[rows]]


def gradient(model, rows):
    """Of the mean loss."""
    return errors(model, rows)[1].T @ extended(rows) / len(rows)


def squares(model, rows):
    """The sum of the squared gradients of the points."""
    return (errors(model, rows)[1] ** 2).T @ extended(rows) ** 2


def train(model, rows, added=lambda model: 0.0):
    """Two steps of gradient descent; `added` is added to the gradient."""
    for _ in range(STEPS):
        model = model - RATE * (gradient(model, rows) + added(model))
    return model


def fedavg():
    """w = (2 w_0 + w_1) / 3."""
    model = START
    for _ in range(ROUNDS):
        model = 2 / 3 * train(model, TWO_CLIENTS[0]) + 1 / 3 * train(model, TWO_CLIENTS[1])
    return model


def fedprox():
    """As FedAvg, with mu (v - w) added to the gradient; mu = 0.6."""
    model = START
    for _ in range(ROUNDS):
        trained = [train(model, rows, lambda v, w=model: 0.6 * (v - w)) for rows in TWO_CLIENTS]
        model = 2 / 3 * trained[0] + 1 / 3 * trained[1]
    return model


def scaffold():
    """c - c_k added; c_k <- c_k - c + (w - y) / (K lr); w <- w + 0.8 mean(y - w); c <- mean of the c_k."""
    model, controls = START, np.zeros((2, 2, 3))
    for _ in range(ROUNDS):
        mean, trained = controls.mean(0), []
        for own, rows in zip(controls, TWO_CLIENTS, strict=True):
            trained.append(train(model, rows, lambda v, shift=mean - own: shift))
        controls = controls - mean + (model - np.array(trained)) / (STEPS * RATE)
        model = model + 0.8 * (np.mean(trained, 0) - model)
    return model


def fedcurv():
    """2 lambda I_j (w - w_j) of the other client j added, I its mean squares; lambda = 0.4; uniform mean."""
    model, pairs = START, [(np.zeros((2, 3)), START)] * 2
    for _ in range(ROUNDS):
        trained = []
        for rows, (fisher, other) in zip(TWO_CLIENTS, reversed(pairs), strict=True):
            assert (2 * RATE * 0.4 * fisher < 1).all()  # the cap on stiffness rests
            trained.append(train(model, rows, lambda v, i=fisher, w=other: 2 * 0.4 * i * (v - w)))
        pairs = [(squares(w, rows) / len(rows), w) for w, rows in zip(trained, TWO_CLIENTS, strict=True)]
        model = np.mean(trained, 0)
    return model


def hwa():
    """r_k = D_k / |D_k| with D_k the sum of squares at w_k; w = sum r_k w_k / sum r_k."""
    model = START
    for _ in range(ROUNDS):
        trained = [train(model, rows) for rows in TWO_CLIENTS]
        shares = [squares(w, rows) for w, rows in zip(trained, TWO_CLIENTS, strict=True)]
        shares = [diagonal / np.sqrt((diagonal**2).sum()) for diagonal in shares]
        model = (shares[0] * trained[0] + shares[1] * trained[1]) / (shares[0] + shares[1])
    return model


def swa():
    """Weights and biases by |k3 k4| of the four weights; for four values with central moments m

    k3 = 16 m3 / 6 and k4 = 16 (5 m4 - 9 m2^2) / 6.
    """
    model = START
    for _ in range(ROUNDS):
        trained = [train(model, rows) for rows in TWO_CLIENTS]
        distances = []
        for w in trained:
            centred = w[:, :2] - w[:, :2].mean()
            second, third, fourth = ((centred**power).mean() for power in (2, 3, 4))
            distances.append(abs(16 * third / 6 * 16 * (5 * fourth - 9 * second**2) / 6))
        model = (distances[0] * trained[0] + distances[1] * trained[1]) / sum(distances)
    return model


def fagh():
    """Averages G and V with decay 0.9 and 0.99, unbiased; w <- w - 0.3 (V V' / |V_0| + 0.7 I)^-1 G, dense.

    Row 0 of the Hessian belongs to A[0, 0]: entry (c, j) is the mean of p_0 (1[c = 0] - p_c) x_1 x_j.
    """
    model, mean_gradient, mean_row = START, np.zeros((2, 3)), np.zeros((2, 3))
    for number in range(1, ROUNDS + 1):
        everyone = np.arange(3)  # shares 2/3 and 1/3 of means over two points and one: the mean over all
        chances, x = errors(model, everyone)[0], extended(everyone)
        row = (chances[:, :1] * (np.eye(2)[0] - chances) * x[:, :1]).T @ x / 3
        mean_gradient = 0.9 * mean_gradient + 0.1 * gradient(model, everyone)
        mean_row = 0.99 * mean_row + 0.01 * row
        g, v = (mean_gradient / (1 - 0.9**number)).ravel(), (mean_row / (1 - 0.99**number)).ravel()
        hessian = np.outer(v, v) / abs(v[0]) + 0.7 * np.eye(6)
        model = model - 0.3 * np.linalg.solve(hessian, g).reshape(2, 3)
    return model


def dechw(starts):
    """Train, H_i <- H_i + D_i / |D_i|, then every node's closed neighbourhood weighed by the H."""
    models, importance = list(starts), np.zeros((3, 2, 3))
    for _ in range(ROUNDS):
        trained = np.array([train(w, rows) for w, rows in zip(models, THREE_NODES, strict=True)])
        for node, rows in enumerate(THREE_NODES):
            diagonal = squares(trained[node], rows)
            importance[node] += diagonal / np.sqrt((diagonal**2).sum())
        heard = ([0, 1], [0, 1, 2], [1, 2])
        models = [(importance[n] * trained[n]).sum(0) / importance[n].sum(0) for n in heard]
    return np.array(models)


def build():
    module = nn.Linear(2, 2).double()
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(START[:, :2]))
        module.bias.copy_(torch.from_numpy(START[:, 2]))
    return module


def simulation(algorithm, shards, topology, init, make):
    none = tuple(np.arange(0) for _ in shards)
    scene = Scene(
        dataset=Dataset.from_arrays("three points", POINTS, LABELS, POINTS, LABELS),
        build=make,
        partitions={0: Partition(shards, none, {}, 0)},
        topology=topology,
        work=LocalWork(STEPS, None, 2),
        participation=len(shards),
        init=init,
        normalize="none",
        dtype=torch.float64,
    )
    return simulate(scene, [(algorithm, SGD(RATE))])


def matrices(made):
    """The hub's weights and biases, [replicas, (nodes,) 2, 3]."""
    params = made.hub["params"]
    return torch.cat([params["weight"], params["bias"][..., None]], -1).numpy()


@pytest.mark.parametrize(
    ("algorithm", "derivation"),
    [
        (FedAvg(), fedavg),
        (FedProx(mu=0.6), fedprox),
        (Scaffold(server_lr=0.8), scaffold),
        (FedCurv(strength=0.4), fedcurv),
        (HWA(), hwa),
        (SWA(), swa),
        (FAGH(lr=0.3, rho=0.7), fagh),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_server_and_two_clients(algorithm, derivation):
    made = simulation(algorithm, TWO_CLIENTS, Star(), "common", build)
    for _ in range(ROUNDS):
        made.step(evaluate=False)
    np.testing.assert_allclose(matrices(made)[0], derivation(), rtol=0, atol=1e-10)


def test_dechw_on_three_nodes_in_a_line():
    made = simulation(DecHW(), THREE_NODES, Line(), "different", lambda: nn.Linear(2, 2))
    starts = matrices(made)[0].copy()
    for _ in range(ROUNDS):
        made.step(evaluate=False)
    np.testing.assert_allclose(matrices(made)[0], dechw(starts), rtol=0, atol=1e-10)

"""Losses, scores and curvature of every problem, against plain torch, and methods that run on all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import rankdata
from torch.nn import functional as F
from torch.testing import assert_close

import consilience as cs
from consilience import tree
from consilience.algorithms import METHODS
from consilience.algorithms.dechw import DecHW
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.hwa import HWA
from consilience.data.dataset import Dataset, problem_of
from consilience.errors import UserError
from consilience.learning.curvature import contribution
from consilience.learning.solvers import SGD
from consilience.learning.task import Task
from consilience.method import Composed
from consilience.objectives import OBJECTIVES
from consilience.problems import PROBLEMS, Classification, MultiLabel, NextToken, Problem, Regression
from consilience.types import Batch

KINDS = ("per_sample_sum", "batch_sum", "full_grad_sq")
ON_ALL = ("fedavg", "fedprox", "scaffold", "fedcurv", "hwa", "swa", "fagh", "fedlin", "pfedme", "local")
ON_ALL += ("fisher_merge", "kfac_weighted", "fedsso")


def batch_of(dataset: Dataset, rows: int = 12, padding: int = 0) -> Batch:
    inputs = dataset.inputs[:rows]
    weight = torch.ones(rows, dtype=torch.float64)
    if padding:
        weight[-padding:] = 0
    inputs = inputs if inputs.dtype == torch.int64 else inputs.double()
    return Batch(inputs, dataset.targets[:rows], weight, torch.tensor(0))


def task_of(case, problem: Problem | None = None):
    torch.manual_seed(1)
    module = case.build()
    chosen = problem or case.dataset.problem
    task = Task(module, torch.float64, problem=chosen)
    return task, task.weights_of(module), module.double()


# What data look like says what is to be learned.


def test_targets_say_what_the_problem_is(case, request):
    name = request.node.callspec.params["case"]
    assert case.dataset.problem == PROBLEMS[name]()
    assert problem_of(case.dataset.inputs, case.dataset.targets) == PROBLEMS[name]()


# Losses.


def test_losses_are_those_of_torch(case):
    task, model, module = task_of(case)
    batch = batch_of(case.dataset)
    found = task.loss(task.forward(model, batch, training=False).prediction, batch.targets)
    prediction, wanted = module(batch.inputs), batch.targets
    for row in range(12):
        said, target = prediction[row], wanted[row]
        expected = {
            "classification": F.cross_entropy,
            "regression": lambda p, t: F.mse_loss(p, t.double()),
            "multi_label": lambda p, t: F.binary_cross_entropy_with_logits(p, t.double()),
            "next_token": lambda p, t: F.cross_entropy(p, t, ignore_index=-100),
        }[task.problem.name](said, target)
        assert_close(found[row], expected, rtol=1e-12, atol=1e-14)


def test_hubers_loss_is_torchs():
    said, wanted = torch.randn(20, 2, dtype=torch.float64), 3 * torch.randn(20, 2)
    found = Regression(loss="huber", delta=0.7).losses(said, wanted)
    assert_close(found, F.huber_loss(said, wanted.double(), reduction="none", delta=0.7).mean(1))


def test_class_weights_are_torchs_and_balanced_ones_count_classes_alike():
    targets = torch.tensor([0, 0, 0, 1, 1, 2])
    said = torch.randn(6, 3, dtype=torch.float64)
    weights = (0.5, 2.0, 1.0)
    expected = F.cross_entropy(said, targets, torch.tensor(weights).double(), reduction="none")
    assert_close(Classification(weights).losses(said, targets), expected)
    balanced = Classification("balanced").for_data(targets, 3)
    assert isinstance(balanced, Classification)
    assert balanced.class_weights == pytest.approx((2 / 3, 1.0, 2.0))
    counted = torch.zeros(3, dtype=torch.float64).index_add(
        0, targets, torch.tensor(balanced.class_weights).double()[targets]
    )
    assert_close(counted, torch.full((3,), 2.0, dtype=torch.float64))


def test_a_class_that_nobody_has_does_not_divide_by_zero():
    problem = Classification("balanced").for_data(torch.tensor([0, 0, 2]), 4)
    assert all(np.isfinite(problem.class_weights))


# Scores.


@pytest.mark.parametrize("padding", [0, 3])
def test_scores_of_batches_add_up_to_those_of_all_rows(case, padding):
    task, model, _ = task_of(case)
    whole = batch_of(case.dataset, 12, padding)
    parts = [Batch(*(value[rows] for value in whole[:3]), whole.key) for rows in (slice(0, 5), slice(5, 12))]
    alone = task.problem.scores(task.tally(model, whole))
    blank = task.blank_tally(batch_of(case.dataset, 1))
    for part in parts:
        blank = tree.add(blank, task.tally(model, part))
    for name, value in task.problem.scores(blank).items():
        assert_close(value, alone[name], rtol=1e-12, atol=1e-12)
    shorter = batch_of(case.dataset, 12 - padding)
    for name, value in task.problem.scores(task.tally(model, shorter)).items():
        assert_close(value, alone[name], rtol=1e-12, atol=1e-12)


def test_r2_and_mae():
    wanted = torch.tensor([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    said = torch.tensor([[1.5, 5.0], [2.0, 5.0], [3.0, 5.0]]).double()
    found = Regression().scores(Regression().tally(said, wanted, torch.ones(3)))
    spread = ((wanted[:, 0] - wanted[:, 0].mean()) ** 2).sum()
    # The second number never varies and is always right.
    assert_close(found["r2"], ((1 - 1.25 / spread.double()) + 1) / 2)
    assert_close(found["mae"], torch.tensor(1.5 / 6).double())
    worse = Regression().scores(Regression().tally(said + 1, wanted, torch.ones(3)))
    assert worse["r2"] < found["r2"]


@pytest.mark.parametrize("spread", [0.01, 1.0, 100.0])
def test_the_area_under_the_curve_is_that_of_ranks(spread):
    random = torch.Generator().manual_seed(3)
    there = (torch.rand(400, 2, generator=random) < torch.tensor([0.5, 0.1])).long()
    said = spread * (torch.randn(400, 2, generator=random).double() + there)
    found = MultiLabel().scores(MultiLabel().tally(said, there, torch.ones(400)))["auc"]
    areas = []
    for label in range(2):
        ranks, held = rankdata(said[:, label].numpy()), there[:, label].numpy().astype(bool)
        positives, negatives = held.sum(), (~held).sum()
        areas.append((ranks[held].sum() - positives * (positives + 1) / 2) / (positives * negatives))
    assert float(found) == pytest.approx(np.mean(areas), abs=0.005)


def test_f1_and_labels_that_nobody_has():
    there = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]])
    said = torch.tensor([[2.0, -1, -1], [-1.0, 3, -1], [1.0, 1, 2], [-1.0, -1, -1]]).double()
    found = MultiLabel().scores(MultiLabel().tally(said, there, torch.ones(4)))
    assert_close(found["f1"], torch.tensor((2 * 1 / (2 + 2) + 2 * 2 / (2 + 2)) / 2).double())
    assert found["auc"].isfinite()
    nobody = MultiLabel().scores(MultiLabel().tally(said, torch.zeros(4, 3), torch.ones(4)))
    assert nobody["auc"].isnan()


def test_clients_whose_rows_define_no_score_do_not_spoil_the_mean(federate, cases):
    """One client has a single row, from which no area follows; a model that diverged does spoil it."""
    run = federate(cases["multi_label"], METHODS["pfedme"](), solver=SGD(0.1), lanes=5)
    scores = run.step()[0].scores
    least, mean, most = (scores[f"personal_train_auc{kind}"] for kind in ("_min", "", "_max"))
    assert 0 <= least <= mean <= most <= 1
    run.world.pool.inputs[run.world.replicas[0].shards[0]] = torch.nan
    assert np.isnan(run.evaluate()[0]["personal_train_auc"])


def test_perplexity_is_that_of_tokens_and_padding_does_not_count():
    said = torch.randn(3, 4, 5, dtype=torch.float64)
    wanted = torch.tensor([[1, 2, -100, -100], [0, 4, 3, 1], [-100] * 4])
    found = NextToken().scores(NextToken().tally(said, wanted, torch.ones(3)))
    mean = F.cross_entropy(said.flatten(0, 1), wanted.flatten(), ignore_index=-100)
    assert_close(found["perplexity"], mean.exp())
    assert NextToken().losses(said, wanted)[2] == 0


# Curvature.


@pytest.mark.parametrize("kind", ["ggn"])
def test_gauss_newton_is_that_of_the_dense_matrices(case, kind):
    task, model, _ = task_of(case)
    if not task.problem.factored:
        pytest.skip("refused")
    batch = batch_of(case.dataset, 6)
    names = tuple(model["params"])
    found = contribution(task, names, kind, batch, model)
    for name in names:
        expected = torch.zeros_like(model["params"][name]).flatten()
        for row in range(6):
            one = Batch(
                batch.inputs[row : row + 1], batch.targets[row : row + 1], batch.weight[:1], batch.key
            )

            def said(value, one=one, name=name):
                params = {**model["params"], name: value}
                return task.forward({**model, "params": params}, one, training=False).prediction[0]

            jacobian = torch.func.jacrev(said)(model["params"][name]).flatten(1)
            hessian = torch.func.hessian(lambda z, one=one: task.loss(z[None], one.targets)[0])(
                said(model["params"][name])
            )
            expected += (jacobian * (hessian @ jacobian)).sum(0)
        assert_close(found[name].flatten(), expected, rtol=1e-9, atol=1e-12)


def test_gauss_newton_knows_class_weights_and_huber(case):
    options = {"classification": Classification((0.5, 2.0, 1.0)), "regression": Regression("huber", 0.5)}
    problem = options.get(case.dataset.problem.name)
    if problem is None:
        pytest.skip("has no such option")
    task, model, _ = task_of(case, problem)
    batch = batch_of(case.dataset, 6)
    prediction = task.forward(model, batch, training=False).prediction
    total = sum(torch.einsum("bi,bj->bij", s, s) for s in problem.hessian_factors(prediction, batch.targets))
    for row in range(6):
        exact = torch.func.hessian(lambda z, row=row: task.loss(z[None], batch.targets[row : row + 1])[0])
        assert_close(total[row], exact(prediction[row]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", [HWA(kind="true_fisher"), FedCurv(fisher="true_fisher")])
def test_curvature_that_a_problem_has_not_is_refused_in_one_line(federate, case, method):
    if case.dataset.problem.enumerable:
        federate(case, method)
        return
    with pytest.raises(UserError, match="true_fisher lists all possible targets"):
        federate(case, method)


# Methods.


@pytest.mark.parametrize("name", ON_ALL)
def test_batched_equals_sequential_on_every_problem(federate, case, name):
    options = {"solver": SGD(0.1)} if name in ("scaffold", "pfedme", "fedlin") else {}
    runs = [federate(case, METHODS[name](), lanes=lanes, **options) for lanes in (None, 3)]
    records = [[run.step() for _ in range(2)][-1][0] for run in runs]
    for group, params in runs[0].hub.items():
        for path, value in params.items():
            assert_close(runs[1].hub[group][path], value, rtol=1e-9, atol=1e-11)
    assert records[0].scores.keys() == records[1].scores.keys()
    for score, value in records[0].scores.items():
        assert records[1].scores[score] == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    "method", [DecHW(), METHODS["dpsgd"](), METHODS["decdiff"]()], ids=lambda one: one.name
)
def test_graphs_learn_every_problem(federate, case, method):
    runs = [federate(case, method, lanes=lanes, graph=True, init="different") for lanes in (None, 2)]
    for run in runs:
        run.step()
    metric = case.dataset.problem.metric.name
    first, second = (run.step()[0] for run in runs)
    assert {f"test_{metric}", f"{metric}_std", f"trained_{metric}", "test_loss"} <= first.scores.keys()
    assert first.scores[f"test_{metric}"] == pytest.approx(second.scores[f"test_{metric}"], rel=1e-9)
    assert len(first.nodes[metric]) == 5


def test_every_problem_is_learned(federate, case):
    run = federate(case, METHODS["fedavg"](), lanes=5)
    metric = case.dataset.problem.metric
    before = run.evaluate()[0][f"test_{metric.name}"]
    for _ in range(25):
        after = run.step()[0].scores[f"test_{metric.name}"]
    better = after - before if metric.higher_is_better else before - after
    goals = {"classification": 0.2, "regression": 0.5, "multi_label": 0.2, "next_token": 2.0}
    assert better > goals[case.dataset.problem.name]


@pytest.mark.parametrize("name", ["moon", "desa", "decdiff-vt"])
def test_methods_that_need_classes_say_so(federate, case, name):
    if case.dataset.problem.has_classes:
        return
    with pytest.raises(UserError, match=f"{case.dataset.problem.name} has none") as caught:
        federate(case, METHODS[name](), graph=name != "moon")
    assert "\n" not in str(caught.value)


def test_early_stopping_goes_by_the_problems_loss(federate, case):
    method = Composed(objective=OBJECTIVES["plain"](early_stop="stop"))
    runs = [federate(case, method, lanes=lanes, holdout=True) for lanes in (None, 3)]
    for run in runs:
        run.step(evaluate=False)
    for path, value in tree.flatten(runs[0].hub).items():
        assert_close(tree.flatten(runs[1].hub)[path], value, rtol=1e-9, atol=1e-11)


# What does not fit is refused.


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (Regression(), "real numbers are wanted"),
        (MultiLabel(), "labels are wanted"),
        (NextToken(), "tokens are wanted"),
        (Classification((1.0, 2.0)), "class_weights has 2 numbers for 3 classes"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_targets_of_another_problem_are_refused(problem, message):
    with pytest.raises(UserError, match=message):
        Dataset.from_arrays(
            "own",
            torch.rand(6, 2),
            torch.arange(6) % 3,
            torch.rand(3, 2),
            torch.arange(3),
            problem=problem,
            classes=3,
        )


@pytest.mark.parametrize(
    "make", [lambda: Regression(delta=0.0), lambda: Classification((1.0, -1.0))], ids=["delta", "weights"]
)
def test_options_that_make_no_sense_are_refused(make):
    with pytest.raises(UserError):
        make()


ROWS, CLASSES = torch.rand(6, 2), torch.arange(6) % 3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classification("balnced"), "class_weights are balanced or numbers"),
        (lambda: Classification((1.0, float("inf"))), "finite"),
        (lambda: Regression("mae"), "unknown loss of regression 'mae'"),
        (lambda: Regression(delta=2.0), "delta 2.0 is for the loss huber"),
    ],
)
def test_wrong_options_from_python_are_refused(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_class_weights_may_be_a_list():
    assert Classification([1.0, 2.0]) == Classification((1.0, 2.0))


@pytest.mark.parametrize(
    ("targets", "test_targets", "options", "message"),
    [
        (torch.rand(6), torch.rand(6, 1), {}, "make them alike"),
        (torch.tensor(3), CLASSES, {}, "real ones, a row each, are wanted"),
        (CLASSES, CLASSES, {"problem": MultiLabel()}, "labels are wanted"),
        (torch.rand(6, 0), torch.rand(6, 0), {}, "nothing to predict"),
    ],
)
def test_odd_targets_get_a_line(targets, test_targets, options, message):
    with pytest.raises(UserError, match=message):
        Dataset.from_arrays("own", ROWS, targets, ROWS, test_targets, **options)


def test_tokens_that_only_inputs_hold_are_counted():
    begin = torch.tensor([[9, 1, 2]])
    text = Dataset.from_arrays("text", begin, begin.clamp(max=3), begin, begin.clamp(max=3))
    assert text.outputs == 10
    with pytest.raises(UserError, match="inputs hold the token 9; tokens go to 4"):
        Dataset.from_arrays("text", begin, begin.clamp(max=3), begin, begin.clamp(max=3), classes=5)


@pytest.mark.parametrize(
    ("inputs", "targets", "model"),
    [
        (torch.randint(0, 5, (6, 4)), CLASSES, "mlp"),
        (torch.randint(0, 5, (6, 4)), CLASSES, "window-lm"),
        (torch.rand(6, 4), CLASSES, "window-lm"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_the_first_round(inputs, targets, model):
    data = Dataset.from_arrays("own", inputs, targets, inputs, targets)
    with pytest.raises(UserError, match="the model does not fit classification") as caught:
        cs.run("fedavg", data=data, model=model, clients=2, rounds=1)
    assert "\n" not in str(caught.value)
    assert ("taken for tokens" in str(caught.value)) == (inputs.dtype == torch.int64)


def test_a_regression_that_diverges_has_no_score():
    sums = Regression().tally(torch.full((3, 1), torch.nan), torch.ones(3), torch.ones(3))
    assert Regression().scores(sums)["r2"].isnan()

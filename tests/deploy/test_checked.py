"""Nothing is trusted unchecked: kinds of messages, models to score, sums, what orders leave out."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from consilience import tree, wire
from consilience.algorithms import METHODS
from consilience.deploy.carrying import InProcess, enrol
from consilience.deploy.carrying import federate as carry
from consilience.deploy.site import Order
from consilience.deploy.terms import RefusedError
from consilience.testing.federation import SIZES
from consilience.transforms.until import Until


def begun(place, **options):
    """A hub whose sites have enrolled, and these."""
    hub, sites = place.hub(**options), place.sites()
    assert enrol(hub, InProcess(sites)) == {}
    return hub, sites


def rewritten(data, change=lambda message: message, **fields):
    """A message with something else in it or in its header, and a digest that fits."""
    message, header = wire.decode(data)
    return wire.encode(change(message), dataclasses.replace(header, **fields), empty=True)


def with_first(change):
    """Changes the first parameter of a message."""

    def changed(message):
        name, value = next(iter(message["params"].items()))
        return {**message, "params": {**message["params"], name: change(value)}}

    return changed


def test_an_order_of_another_kind_is_no_work(federate):
    hub, sites = begun(federate(METHODS["fedavg"]()))
    with pytest.raises(RefusedError, match="the order is about 'hello'"):
        sites[0].answer(Order(rewritten(hub.orders()[0].data, kind="hello")))
    assert sites[0].answered == -1


MODELS = {
    "is not finite": (with_first(lambda value: value * torch.nan), {}),
    "instead of float64 of shape": (with_first(lambda value: value[:1]), {}),
    "is missing": (lambda message: {}, {}),
    "is not part of this message": (lambda message: {**message, "more": message["params"]}, {}),
    "nothing to score in round 9": (lambda message: message, {"round": 9}),
    "nothing to score in round 0": (lambda message: message, {"exchange": -1}),
}


@pytest.mark.parametrize("reason", MODELS)
def test_a_site_scores_models_alone(reason, federate):
    hub, sites = begun(federate(METHODS["fedavg"]()))
    change, fields = MODELS[reason]
    with pytest.raises(RefusedError, match=reason):
        sites[0].answer(Order(rewritten(hub.score_orders()[0].data, change, **fields)))


def test_where_every_site_has_its_own_model_none_is_taken(federate):
    place = federate(METHODS["local"]())
    hub, sites = begun(place)
    order = hub.score_orders()[0]
    assert wire.decode(sites[0].answer(order))[0].keys() == {"train"}
    with pytest.raises(RefusedError, match="is not part of this message"):
        sites[0].answer(Order(rewritten(order.data, lambda message: place.model)))


def test_an_order_that_is_refused_changes_nothing(federate):
    place = federate(METHODS["scaffold"]())
    (hub, sites), (same, others) = begun(place), begun(place)
    for one, there in ((hub, sites), (same, others)):
        one.take(InProcess(there).ask(one.orders()).data)
    data = rewritten(hub.orders()[0].data, with_first(lambda value: value[:1]))
    with pytest.raises(RefusedError, match="does not fit"):
        sites[0].answer(Order(data))  # it says that nothing was accepted
    assert sites[0].answer(hub.orders()[0]) == others[0].answer(same.orders()[0])


def test_what_an_order_leaves_out_is_of_the_exchange_before(federate, tmp_path):
    place = federate(METHODS["fedlin"]())
    hub, sites = place.hub(quorum="all"), place.sites(tmp_path)
    enrol(hub, InProcess(sites))
    while not hub.round:
        hub.take(InProcess(sites).ask(hub.orders()).data)
    late = place.site(0, file=tmp_path / "0.safetensors")  # it will not hear of the next exchange
    hub.take(InProcess(sites).ask(hub.orders()).data)
    with pytest.raises(RefusedError, match="builds on exchange 2, which this site has not answered"):
        late.answer(Order(hub.orders()[0].data, accepted=late.answered))


def test_a_site_that_is_started_again_between_two_exchanges_of_a_later_method(federate, tmp_path):
    place = federate(Until(METHODS["feddane"](), 1, METHODS["fedlin"]()), rounds=3)
    hub = place.hub(quorum="all")
    while not hub.done:
        sites = place.sites(tmp_path)
        enrol(hub, InProcess(sites))
        hub.take(InProcess(sites).ask(hub.orders()).data)
    stayed = place.hub(quorum="all")
    carry(stayed, InProcess(place.sites()))
    assert_close(hub.state, stayed.state, rtol=0, atol=0)


SUMS = {
    "'evil/": lambda sums: {"evil": sums["train"]},
    "is not finite": lambda sums: {
        "train": {name: value * torch.nan for name, value in sums["train"].items()}
    },
    "of shape": lambda sums: {"train": {name: torch.stack([v, v]) for name, v in sums["train"].items()}},
    "is missing": lambda sums: {**sums, "own": {}},
    "more than the": lambda sums: {"train": {**sums["train"], "more": torch.zeros(9999)}},
}


@pytest.mark.parametrize("reason", SUMS)
def test_sums_of_another_form_are_refused_whole(reason, federate):
    hub, sites = begun(federate(METHODS["fedavg"]()))
    answers = InProcess(sites).ask(hub.score_orders()).data
    answers[1] = rewritten(answers[1], SUMS[reason])
    found, refused = hub.scores(answers)
    assert refused.keys() == {1}
    assert reason in refused[1]
    assert found["train"].keys() == set(range(len(SIZES))) - {1}


def test_finite_answers_whose_sum_is_not_leave_the_hub_as_it_was(federate):
    hub, sites = begun(federate(METHODS["fedavgm"]()))
    answers = InProcess(sites).ask(hub.orders()).data

    def largest(message):
        params = {n: torch.full_like(v, torch.finfo(v.dtype).max) for n, v in message["params"].items()}
        return {**message, "params": params}

    assert not hub.take({site: rewritten(data, largest) for site, data in answers.items()}).refused
    before = hub.state
    report = hub.take({site: rewritten(data, largest, round=1) for site, data in answers.items()})
    assert set(report.refused.values()) == {"combined with the others it is not finite"}
    assert (report.heard, report.done, hub.round) == ((), True, 2)
    assert hub.state is before
    assert all(value.isfinite().all() for value in tree.flatten(hub.state).values())

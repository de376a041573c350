"""A server at work: rounds, evaluation, files. What carries its messages is somebody else's affair."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from consilience.deploy.agreeing import Agreement
from consilience.deploy.carrying import Answers, Carrier, enrol
from consilience.deploy.hub import Hub, Report
from consilience.deploy.journal import Journal
from consilience.deploy.site import Order, tally_of
from consilience.experiment.weights import save_weights

LOG = logging.getLogger("consilience")

HUB_FILE = "hub.safetensors"


def serve(
    agreement: Agreement,
    carrier: Carrier,
    folder: Path,
    *,
    wait: Callable[[], None] = lambda: time.sleep(0.5),
) -> Hub:
    """Carry a federation to its end, from wherever its files say that it stands.

    Args:
        agreement: The terms, and what the configuration says beside them.
        carrier: What brings orders to sites.
        folder: Where the hub keeps its files.
        wait: Called while there are too few sites.
    """
    terms, config = agreement.terms, agreement.arm.config
    journal = Journal(folder, terms.run, "hub")
    hub = Hub(terms, agreement.initial(), quorum=config.deploy.quorum, file=folder / HUB_FILE)
    scores: dict[str, Any] = {}
    begun, until = time.perf_counter(), time.monotonic() + config.deploy.deadline
    while not hub.done:
        if hub.between_rounds:
            _gather(hub, carrier, journal, wait, until)
        orders, now = hub.orders(), hub.round
        _await(hub, orders, carrier, wait)
        answers = carrier.ask(orders)
        report = hub.take(answers.data)
        _tell(journal, report, answers)
        if hub.round > now:
            if (now + 1) % config.evaluate.every == 0 or hub.done:
                scores = _scores(agreement, hub)
            took, begun = max(0.0, time.perf_counter() - begun), time.perf_counter()
            journal.note(now + 1, {"seconds": took, **_facts(hub), **_went(report), **scores})
            LOG.info(_line(hub, report, scores, took))
        journal.stand({**_facts(hub), **_went(report), **scores, "done": hub.done})
    if config.evaluate.clients:
        _score_sites(hub, carrier, journal)
    save_weights(folder, agreement.arm, terms.task, [(0, None, hub.evaluated_model())])
    return hub


def _gather(hub: Hub, carrier: Carrier, journal: Journal, wait: Callable[[], None], until: float) -> None:
    """Enrol whoever is there; go on once everybody is known, or enough are and the time for it is over."""
    told: dict[int, str] = {}
    shown = None
    while True:
        refused = enrol(hub, carrier)
        for site, reason in refused.items() - told.items():  # once, and not whenever they are asked again
            journal.refuse(site, reason, hub.round)
            LOG.warning("site %s does not take part: %s", site, reason)
        told |= refused
        missing = hub.terms.population - len(hub.enrolled)
        enough = hub.quorum != "all" and len(hub.enrolled) >= hub.needed(hub.terms.population)
        if not missing or (enough and time.monotonic() > until):
            return
        if missing != shown:
            LOG.info("waiting for sites: %d of %d are here", len(hub.enrolled), hub.terms.population)
            journal.stand({**_facts(hub), "done": False})
        shown = missing
        wait()


def _await(hub: Hub, orders: Mapping[int, Order], carrier: Carrier, wait: Callable[[], None]) -> None:
    """Wait while fewer of a cohort are there than must be heard: rounds without them come to nothing."""
    told = False
    while len(orders.keys() & set(carrier.sites())) < hub.needed(len(orders)):
        if not told:
            LOG.warning("round %d: waiting for more sites", hub.round + 1)
        told = True
        wait()


def _tell(journal: Journal, report: Report, answers: Answers) -> None:
    for site, reason in {**answers.failed, **report.refused}.items():
        journal.refuse(site, reason, report.address.round)
        LOG.warning("round %d: site %s is not heard: %s", report.address.round + 1, site, reason)
    if not report.done:
        LOG.warning("round %d: an exchange is repeated until all have answered", report.address.round + 1)


def _line(hub: Hub, report: Report, scores: Mapping[str, float], took: float) -> str:
    """How a round went, for whoever watches."""
    shown = "".join(f", {name} {value:.4g}" for name, value in scores.items())
    round_number, heard, asked = report.address.round + 1, len(report.heard), len(report.asked)
    return f"round {round_number} of {hub.terms.rounds}: heard {heard} of {asked}{shown}, {took:.1f} s"


def _facts(hub: Hub) -> dict[str, Any]:
    return {
        "rounds": hub.terms.rounds,
        "sites": {str(site): samples for site, samples in hub.enrolled.items()},
        "bytes_up": sum(hub.traffic.up.values()),
        "bytes_down": sum(hub.traffic.down.values()),
    }


def _went(report: Report) -> dict[str, Any]:
    return {
        "asked": list(report.asked),
        "heard": list(report.heard),
        "refused": {str(site): reason for site, reason in report.refused.items()},
    }


def _scores(agreement: Agreement, hub: Hub) -> dict[str, float]:
    """What the hub's model scores on the global test set, where the hub has one."""
    tested, model = agreement.tested, hub.evaluated_model()
    if tested is None or not model:
        return {}
    pool, rows = tested
    sums = tally_of(agreement.terms, pool, model, rows)
    return {f"test_{name}": float(value) for name, value in agreement.terms.task.scores(sums).items()}


def _score_sites(hub: Hub, carrier: Carrier, journal: Journal) -> None:
    """Let every site score the final model, and its own one, on its rows."""
    carrier.sites()  # who is there may have changed since the last round
    answers = carrier.ask(hub.score_orders())
    found, refused = hub.scores(answers.data)
    for site, reason in {**answers.failed, **refused}.items():
        journal.refuse(site, reason, hub.round - 1)  # there is no other round after the last
    metric = hub.terms.task.problem.metric.name
    means = {
        kind: float(np.mean([scores[metric] for scores in by_site.values()]))
        for kind, by_site in found.items()
    }
    by_site = {kind: {str(site): one for site, one in scores.items()} for kind, scores in found.items()}
    journal.note(hub.round, {"final": by_site, **{f"{kind}_{metric}": v for kind, v in means.items()}})

"""Exchanges of replies, of which there may be more than fit into memory at a time."""

from __future__ import annotations

import dataclasses

import torch

from consilience import tree
from consilience.algorithms.cfa_ge import CFAGE
from consilience.engine.rounds import replies
from consilience.graphs.complete import Complete
from consilience.testing import prepare
from consilience.testing.federation import Layout, ragged_partition, simulation_of


def test_in_parts_they_are_what_they_are_at_once(monkeypatch):
    subject = prepare(CFAGE(mu=0.1))
    partitions = {seed: ragged_partition((4, 2, 6, 3, 5), seed) for seed in (0, 1)}
    whole = Layout(Complete(), partitions, lanes=3, chunk=100)
    sizes: list[int] = []
    run = replies._run_some

    def counting(one, some, *rest):
        sizes.append(len(some))
        return run(one, some, *rest)

    at_once = simulation_of(subject, whole)
    expected = [at_once.step() for _ in range(3)]
    monkeypatch.setattr(replies, "_run_some", counting)
    in_parts = simulation_of(subject, dataclasses.replace(whole, chunk=7))
    found = [in_parts.step() for _ in range(3)]
    assert max(sizes) <= 7
    assert len(sizes) > 3 * 3
    for one, two in zip(expected, found, strict=True):
        for left, right in zip(one, two, strict=True):
            alike = ("bytes_up", "bytes_down", "messages", "samples", "dropped")
            assert [getattr(left, name) for name in alike] == [getattr(right, name) for name in alike]
    for path, value in tree.flatten(at_once.hub).items():
        torch.testing.assert_close(tree.flatten(in_parts.hub)[path], value, rtol=1e-12, atol=1e-12)

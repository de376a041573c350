"""Arms and replicas that workers run whole leave the files of one process, whoever dies, and when."""

from __future__ import annotations

import pytest

from consilience.errors import UserError
from consilience.experiment import early
from consilience.experiment import execution as experiment
from consilience.experiment import folder as run_folder
from consilience.experiment.early import Early
from consilience.experiment.folder import RunFolder

SETTING = {
    "method": ["fedavg", "scaffold", "fedcurv"],
    "clients": 3,
    "participation": 2,
    "failure_rate": 0.2,
    "rounds": 5,
    "checkpoint": {"every": 2},
    "evaluate": {"every": 2, "clients": True},
}


@pytest.fixture(scope="module")
def at_home(configure, harvest, tmp_path_factory):
    """What one process leaves behind, by what is special about its configuration."""
    known = {}

    def of(**changes):
        key = repr(changes)
        if key not in known:
            path = tmp_path_factory.mktemp("runs") / "run"
            experiment.run(configure(**SETTING | changes, executor="sequential"), folder=RunFolder(path))
            known[key] = harvest(path)
        return known[key]

    return of


@pytest.fixture
def abroad(configure, hands, monkeypatch, tmp_path):
    """Runs a configuration with workers of this process, and gives these."""

    def run(count, deadly=(), *, functions=(), listener=None, **changes):
        some = hands(count, deadly)
        monkeypatch.setattr(early, "hands_of", lambda arm: some)
        config = configure(**SETTING | changes, executor="ray-sequential", workers=count)
        folder = RunFolder(tmp_path / "run")
        try:
            experiment.run(config, folder=folder, existing="resume", listener=listener, on_round=functions)
        finally:
            some.courses = {leg.course for leg in some.legs}
        return some

    return run


@pytest.mark.parametrize(
    ("count", "changes"),
    [
        (2, {"seeds": [0, 1, 2]}),  # replicas fill the workers
        (2, {}),  # arms do; the last one would not, and its clients would be dealt
        (1, {}),
    ],
)
def test_the_files_are_those_of_one_process(count, changes, at_home, abroad, harvest, tmp_path, monkeypatch):
    # The last arm of three on two workers is split by client, and that takes Ray.
    monkeypatch.setattr(Early, "is_whole", lambda self, number: True)
    some = abroad(count, **changes)
    assert some.most == count
    assert harvest(tmp_path / "run") == at_home(**changes)


def test_a_worker_dies_now_and_then(at_home, abroad, harvest, tmp_path, monkeypatch):
    monkeypatch.setattr(Early, "is_whole", lambda self, number: True)
    abroad(2, [2, 7, 11, 16], seeds=[0, 1, 2])
    assert harvest(tmp_path / "run") == at_home(seeds=[0, 1, 2])


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it."""


@pytest.mark.parametrize("deadly", range(6, 37, 6))
def test_a_run_that_is_killed_goes_on_with_other_workers(
    deadly, at_home, abroad, harvest, tmp_path, monkeypatch
):
    monkeypatch.setattr(Early, "is_whole", lambda self, number: True)
    write, append, count = run_folder.atomic_write, RunFolder.append, []

    def dies():
        count.append(1)
        if len(count) == deadly:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "atomic_write", lambda *given: dies() or write(*given))
        patch.setattr(RunFolder, "append", lambda *given: dies() or append(*given))
        with pytest.raises(Killed):
            abroad(3)
    abroad(2)
    assert harvest(tmp_path / "run") == at_home()


def test_what_was_done_early_serves_a_single_process(
    at_home, abroad, configure, harvest, tmp_path, stop_after
):
    """Two workers: the second method has begun when the first is interrupted."""
    with pytest.raises(KeyboardInterrupt):
        abroad(2, listener=stop_after(5))
    (kept,) = (tmp_path / "run" / "early").glob("*/checkpoint.safetensors")
    assert "scaffold" in str(kept)
    some = abroad(1)
    repeated = [leg for leg in some.legs if leg.told < 2]
    assert len({leg.course for leg in repeated}) == 1  # the third method alone begins anew
    assert harvest(tmp_path / "run") == at_home()


def test_arms_go_whole_while_there_are_as_many_replicas_as_workers(configure, hands, monkeypatch):
    def whole(count, **changes):
        monkeypatch.setattr(early, "hands_of", lambda arm: hands(count))
        arms = experiment.plan(configure(**SETTING | changes, executor="ray", workers=count).resolved())
        found = Early(arms, None, lambda *given: None, watched=changes.get("watched", False))
        return [found.is_whole(number) for number in range(len(arms))]

    assert whole(1) == [True, True, True]
    assert whole(2) == [True, True, False]
    assert whole(4) == [False, False, False]
    assert whole(4, seeds=[0, 1]) == [True, True, False]
    # Who is watched waits for its turn.
    assert whole(2, stop_when={"patience": 3}) == [False, False, False]
    # Memories in files stay with the files; FedAvg has none.
    assert whole(1, memories={"resident": "never"}) == [True, False, False]


def test_a_cluster_that_cannot_be_reached_costs_no_earlier_run(configure, harvest, monkeypatch, tmp_path):
    def hands_of(arm):
        raise UserError("cluster: no Ray cluster answers at nowhere")

    folder = RunFolder(tmp_path / "run")
    experiment.run(configure(), folder=folder)
    before = harvest(folder.path)
    monkeypatch.setattr(early, "hands_of", hands_of)
    lost = configure(executor="ray", cluster="nowhere")
    with pytest.raises(UserError, match="nowhere"):
        experiment.run(lost, folder=RunFolder(folder.path), existing="overwrite")
    assert harvest(folder.path) == before
    with pytest.raises(UserError, match="nowhere"):
        experiment.run(lost, folder=RunFolder(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("functions", [False, True])
def test_replicas_that_stop_stop_where_they_would(
    functions, at_home, abroad, configure, harvest, tmp_path, monkeypatch
):
    changes = {"seeds": [0, 1], "stop_when": {"accuracy": 0.6}}
    home, seen = tmp_path / "home", ([], [])
    given = [
        lambda state, to=to: to.append(float(state.models["params"]["body.1.weight"].sum())) for to in seen
    ]
    config = configure(**SETTING | changes, executor="sequential")
    experiment.run(config, folder=RunFolder(home), on_round=given[:1] if functions else ())
    abroad(2, functions=given[1:] if functions else (), **changes)
    assert any("stopped" in line for line in harvest(home)["metrics.jsonl"])
    assert harvest(tmp_path / "run") == harvest(home)
    assert seen[0] == seen[1]

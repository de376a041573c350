"""The page as a file: what it holds, that it is whole, safe and small."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from consilience.errors import UserError
from consilience.experiment.reading import read_runs
from consilience.experiment.reporting import report
from consilience.problems import Regression
from consilience.report.page.collecting import collect
from consilience.report.page.rendering import SCRIPTS, STYLES, render, resource
from consilience.report.runs import grouped

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;"
VOID = {"meta", "link", "img", "br"}


class Reader(HTMLParser):
    """Reads a page and complains where elements do not nest."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.seen, self.texts = [], [], {}

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            identity = self.open[-1], len([tag for tag, _ in self.seen if tag == self.open[-1]])
            self.texts[identity] = self.texts.get(identity, "") + data


def collected(*paths, targets=None):
    runs = read_runs(paths)
    return collect(runs, grouped(runs, targets))


def read(page):
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def test_what_is_collected_comes_back_from_the_page(tmp_path, written):
    path = written(
        tmp_path / "run", ("fedavg", HOSTILE), nodes=True, curvature=True, names=(HOSTILE, "b", "c", "d")
    )
    data = collected(path)
    page = read(render(data))
    assert json.loads(page.texts["script", 1]) == json.loads(json.dumps(data))
    assert [tag for tag, _ in page.seen].count("script") == 2
    assert not {"img", "iframe", "object"} & {tag for tag, _ in page.seen}
    assert data["labels"] == ["fedavg", HOSTILE]


def test_nothing_is_asked_of_a_network(tmp_path, written):
    page = render(collected(written(tmp_path / "run")))
    found = set(re.findall(r"(?:https?:)?//[\w.]+", re.sub(r"^ *//.*$", "", page, flags=re.MULTILINE)))
    assert found <= {"http://www.w3.org"}  # the name of SVG's elements
    policy = next(a["content"] for tag, a in read(page).seen if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


def test_curves_are_means_and_spreads_over_seeds(tmp_path, written):
    slopes = (0.1, 0.2, None)
    path = written(tmp_path / "run", ["fedavg"], values=lambda _, seed, n: slopes[seed] and n * slopes[seed])
    (group,) = collected(path)["groups"]
    curve = group["entries"][0]["curves"]["test_accuracy"]
    assert curve["round"] == [1, 2, 3, 4, 5, 6]
    assert curve["bytes"][:2] == [1500, 3000]
    assert curve["seconds"][:2] == [0.25, 0.5]  # of all seeds together
    assert curve["mean"][1] == pytest.approx(0.3)
    assert curve["std"][1] == pytest.approx(0.141421)
    assert curve["seeds"] == [2] * 6  # the third has no finite value, and is not hidden


def test_tables_say_what_the_terminal_says(tmp_path, written):
    (group,) = collected(written(tmp_path / "run"), targets=[0.5, 2.0])["groups"]
    entries = group["entries"]
    assert [one["reached"][0] for one in entries] == [
        {"mean": pytest.approx(14 / 3), "reached": 3, "seeds": 3, "shown": "4.7"},
        {"mean": pytest.approx(11 / 3), "reached": 3, "seeds": 3, "shown": "3.7"},
    ]
    assert group["first"] == [[False, True], [False, False]]
    assert entries[0]["reached"][1] == {"mean": None, "reached": 0, "seeds": 3, "shown": "never"}
    assert entries[0]["final"]["seeds"] == [[0, 0.75], [1, pytest.approx(0.74)], [2, pytest.approx(0.73)]]
    told = group["significance"]
    assert told["best"] == 1
    assert told["against"][1][0]["test"] == "paired t-test"
    assert told["variance"].startswith("one-way ANOVA over 2 methods, at least 3 seeds each")


def test_clients_are_ranked_since_seeds_deal_other_rows(tmp_path, written):
    (group,) = collected(written(tmp_path / "run", ["fedavg"]))["groups"]
    (one,) = group["clients"]["entries"]
    assert one["ranks"] == [1, 2, 3, 4]
    assert one["mean"] == pytest.approx([0.4, 0.41, 0.42, 0.43])
    assert one["std"] == pytest.approx([0.1] * 4)
    assert one["clients"][1] == [1, 0.51, 11]
    assert group["partition"]["counts"] == [[5, 0, 0], [5, 1, 0], [5, 2, 0], [5, 3, 0]]


def test_maps_of_nodes_and_of_curvature(tmp_path, written):
    (group,) = collected(written(tmp_path / "run", ["dechw"], nodes=True, curvature=True))["groups"]
    assert group["nodes"]["entries"][0]["values"][3] == pytest.approx(
        [0.04667, 0.06333, 0.08, 0.09667, 0.1133, 0.13]
    )
    assert group["curvature"]["entries"][0]["values"][2] == [0.2, 1.2, 2.2]


def test_a_usual_page_is_small_and_a_large_one_is_thinned(tmp_path, written):
    usual = written(
        tmp_path / "usual", ("a", "b", "c", "d"), tuple(range(10)), 50, clients=100, curvature=True
    )
    assert len(render(collected(usual))) < 300_000
    large = written(tmp_path / "large", [f"m{n}" for n in range(12)], (0,), 900, clients=450)
    data = collected(large)
    (group,) = data["groups"]
    curve = group["entries"][0]["curves"]["test_accuracy"]
    assert group["thinned"]
    assert len(curve["round"]) <= 401
    assert curve["round"][-1] == 900
    assert sum(one["shown"] for one in group["entries"]) == 8
    assert group["partition"]["clients"] == 450
    assert len(group["partition"]["counts"]) == 400
    assert len(render(data)) < 1_500_000


@pytest.mark.parametrize("rounds", [1, 2])
def test_one_seed_and_one_round(tmp_path, written, rounds):
    data = collected(written(tmp_path / "run", ["fedavg"], (3,), rounds, metric=Regression.metric))
    (group,) = data["groups"]
    assert group["significance"] is None
    assert group["entries"][0]["curves"]["test_r2"]["std"] == [None] * rounds
    read(render(data))


def test_files_that_are_missing_leave_their_part_out(tmp_path, written):
    path = written(tmp_path / "run", ended=False)
    for name in ("plan.json", "partitions.json", "clients.jsonl"):
        (path / name).unlink()
    (group,) = collected(path)["groups"]
    assert (group["partition"], group["clients"], group["nodes"], group["curvature"]) == (None,) * 4


def test_the_page_is_written_beside_its_run_or_where_it_is_asked_for(tmp_path, written, monkeypatch, caplog):
    first, second = written(tmp_path / "runs" / "a"), written(tmp_path / "runs" / "b", ended=False)
    monkeypatch.chdir(tmp_path)
    assert report([first]) == first / "report.html"
    (second / "metrics.jsonl").write_text("")
    assert report([tmp_path / "runs"], tmp_path / "page.html").name == "page.html"
    assert report([first], tmp_path) == tmp_path / "report.html"
    with pytest.raises(UserError, match=r"must end in .html"):
        report([first], first / "metrics.jsonl")
    assert "has no round yet and is left out" in caplog.text
    with pytest.raises(UserError, match="no round has been recorded yet"):
        report([second])
    (first / "weights").mkdir()
    with pytest.raises(UserError, match="holds no run"):
        report([first / "weights"])


def test_folders_may_have_any_name(tmp_path, written):
    path = written(tmp_path / os.fsdecode(b"\xff\x1b[2J") / "run")
    other = written(tmp_path / "other" / "run")
    page = render(collected(path, other)).encode().decode()
    assert "\x1b" not in page
    assert read(page).texts["title", 1].startswith(r"\udcff\x1b[2J/run, other/run")


def test_scripts_are_written_without_mistakes(tmp_path):
    if shutil.which("node") is None:
        pytest.skip("needs node, which is not on this machine")
    whole = tmp_path / "page.js"  # all in one, as on the page: a name that two of them have is a mistake
    whole.write_text("\n".join(map(resource, SCRIPTS)))
    checked = subprocess.run(["node", "--check", whole], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert all("</s" not in resource(name) for name in (*SCRIPTS, *STYLES))

"""The page in a real browser: what its reader sees, from a run that grows to names that are markup."""

from __future__ import annotations

import json
import re

from consilience.monitor import server as serving

HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"


def texts(page: str, pattern: str) -> list[str]:
    """The texts of elements, without the markup inside."""
    return [re.sub("<[^>]*>", "", found) for found in re.findall(pattern, page, flags=re.DOTALL)]


def test_a_star_with_several_methods(tmp_path, folders, served, browsed):
    methods = ("fedavg", "fedprox", "hwa", "scaffold", "fedcurv")
    lines = [
        folders.line(
            method=method, seed=seed, round=number, test_accuracy=0.1 * number + 0.02 * place + 0.01 * seed
        )
        for place, method in enumerate(methods[:4])
        for number in (1, 2, 3)
        for seed in (0, 1)
    ]
    page = browsed(served(folders.run(tmp_path / "run", lines, methods=methods)).url)
    assert page.count('class="series"') == 4
    assert page.count('class="node') == 5  # four clients and the hub
    rows = texts(page, r"<tr(?: class=\"chosen\")?>(?:(?!</tr>).)*?</tr>")
    assert any(row.startswith("fedavgdone3 / 3") for row in rows)
    assert any(row.startswith("fedcurvwaiting0 / 3") for row in rows)
    assert "methods ended" in page
    assert 'id="connection" class="">live<' in page


def test_a_graph_of_ten_nodes_is_coloured_by_the_method_that_is_chosen(tmp_path, folders, served, browsed):
    ring = [[node, (node + 1) % 10] for node in range(10)]
    scores = {"dechetero": [0.1 * node for node in range(10)], "dechw": [0.5] * 9 + [None]}
    lines = [folders.line(method=name, nodes={"accuracy": values}) for name, values in scores.items()]
    path = folders.run(
        tmp_path / "run", lines, methods=("dechetero", "dechw"), rounds=1, nodes=10, edges=ring
    )
    server = served(path)
    first, second = (browsed(f"{server.url}/#select={name}") for name in scores)
    colours = [
        re.findall(r'<circle [^>]*fill="(rgb[^"]*)"[^>]*class="node', page) for page in (first, second)
    ]
    assert (len(colours[0]), len(set(colours[0]))) == (10, 10)
    assert (len(colours[1]), len(set(colours[1]))) == (9, 1)
    assert second.count('class="node unknown"') == 1
    assert re.search(r'class="edge" d="(M[\d. ]+L[\d. ]+){10}"', first)
    assert "nodes, by accuracy: dechetero" in first
    assert "90.00 %" in first


def test_names_and_reasons_are_text_and_never_markup(tmp_path, folders, served, browsed):
    hub = folders.hub(tmp_path / "hub", reason=HOSTILE)
    lines = [folders.line(method=HOSTILE, dropped=[f"{HOSTILE} (upload lost)"])]
    run = folders.run(tmp_path / "run", lines, methods=(HOSTILE,), names=(HOSTILE, "b", "c", "d"))
    page = browsed(served(hub, run).url)
    assert "<title>Consilience monitor</title>" in page
    assert "<img" not in page
    assert page.count("<script") == 1
    assert page.count("&lt;img src=x onerror=") >= 6


def test_a_hub_with_refusals_shows_who_is_there_and_why_others_are_not(tmp_path, folders, served, browsed):
    page = browsed(served(folders.hub(tmp_path / "hub")).url)
    assert "1 of 3" in texts(page, r"<h3>there</h3><b>.*?</b>")[0]
    assert page.count('class="node unknown trouble"') == 2
    assert 'class="edge cut"' in page
    assert "refused: it is not finite" in page
    assert "60.00 %" in page
    assert "8.00 kB" in page


def test_a_thousand_rounds_a_hundred_nodes_and_values_that_are_missing(tmp_path, folders, served, browsed):
    lines = [
        folders.line(round=number + 1, test_accuracy=None if number > 900 else 0.5) for number in range(1000)
    ]
    lines[-1] |= {"diverged": True, "nodes": {"accuracy": [None] * 100}}
    ring = [[node, (node + 1) % 100] for node in range(100)]
    page = browsed(served(folders.run(tmp_path / "run", lines, rounds=1000, nodes=100, edges=ring)).url)
    assert page.count('class="node unknown"') == 100
    assert 'class="pill diverged"' in page
    assert "No scores of single members yet" in page
    assert "NaN" not in re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)


def test_what_is_written_later_shows_up_by_itself(tmp_path, folders, served, browsed, monkeypatch):
    path, asked = tmp_path / "run", []
    path.mkdir()
    plain = serving.page_of

    def written_between(offer):
        asked.append(1)
        if len(asked) == 1:
            path.rmdir()
            folders.run(path, [folders.line(round=2)])
        elif len(asked) == 2:
            with (path / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(folders.line(round=3, test_accuracy=0.875)) + "\n")
        return plain(offer)

    monkeypatch.setattr(serving, "page_of", written_between)
    page = browsed(served(path).url)
    assert len(asked) >= 3
    assert "87.50 %" in page
    assert "3<small> of 3</small>" in page
    assert "Nothing here yet" not in re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL)


def test_nothing_yet_and_an_address_that_does_not_answer(tmp_path, served, browsed):
    page = browsed(served(tmp_path, "http://127.0.0.1:9").url)
    assert "Nothing here yet" in texts(page, r'<div class="empty">.*?</div>')[0]
    assert texts(page, r'<div class="problem">.*?</div>')[0].startswith("http://127.0.0.1:9: no answer")

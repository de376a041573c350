"""The page in Chromium, in one session: every plot is there, everything can be switched, no complaint."""

from __future__ import annotations

import math

import pytest

from consilience.experiment.reporting import report

from .browser import Browser, browser, missing

HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>"
PLOTS = ["curves", "bytes", "partition", "curvature", "clients", "nodes"]


@pytest.fixture
def page(tmp_path, written):
    """A page about a run on a graph with everything that there can be, and about one with little."""

    def value(place, seed, number):
        return 0.3 + 0.05 * number + 0.02 * (place + 1) * math.sqrt(1 + seed)

    written(
        tmp_path / "runs" / "graph",
        ("fedavg", "hwa", HOSTILE),
        setting="ring",
        nodes=True,
        curvature=True,
        names=(HOSTILE, "b", "c", "d"),
        values=value,
        note=HOSTILE,
    )
    written(tmp_path / "runs" / "short", ["fedavg"], (0,), 1, ended=False, model={"name": "other"})
    return report([tmp_path / "runs"], tmp_path / "page.html")


def count(view: Browser, selector: str) -> int:
    return int(view.script("return document.querySelectorAll(arguments[0]).length", selector))


def texts(view: Browser, selector: str) -> list[str]:
    found = "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)"
    return list(view.script(found, selector))


def test_the_page(tmp_path, page):
    if lacking := missing():
        pytest.skip(f"needs {lacking}, which is not on this machine")
    with browser(tmp_path / "profile") as view:
        view.resize(1200, 900)
        view.prefer("light")
        view.open(page)
        graph = "section[data-group='ring']"

        # Every plot is there, and has something in it.
        plots = "return [...document.querySelectorAll(arguments[0])].map((one) => one.dataset.plot)"
        assert view.script(plots, f"{graph} figure") == PLOTS
        assert count(view, f"{graph} figure[data-plot=curves] path.series") == 3
        assert count(view, f"{graph} figure[data-plot=curves] path.band") == 3
        assert count(view, f"{graph} figure[data-plot=bytes] path.series") == 3
        assert count(view, f"{graph} image.heat") == 2
        assert "a" in str(
            view.script(f"return document.querySelector(\"{graph} path.bubble\").getAttribute('d')")
        )
        assert count(view, "section[data-group='star'] figure[data-plot=curves] circle.dot") == 1  # one round
        assert texts(view, f"{graph} [data-table=results] b") == ["68.29 ± 2.20", "2.7"]
        assert view.script("return document.title").startswith("graph, short")
        assert count(view, "main img") == 0

        # A method that is switched off is off on all plots at once, and comes back.
        view.click("nav button[data-label=hwa]")
        assert count(view, "path[data-label=hwa]") == 0
        assert count(view, f"{graph} figure[data-plot=curves] path.series") == 2
        assert count(view, f"{graph} figure[data-plot=clients] path.series") == 2
        assert count(view, "tr.off[data-label=hwa]") >= 2
        assert (
            view.script("return document.querySelector('nav button[data-label=hwa]').ariaPressed") == "false"
        )
        view.click("nav button[data-label=hwa]")
        assert count(view, f"{graph} figure[data-plot=curves] path.series") == 3

        # The pointer tells values with their spread; so do arrow keys.
        told = view.hover(f"{graph} figure[data-plot=curves] svg", 0.99)
        assert told.startswith("round 6\n")
        assert "fedavg: 62.76 % ± 0.73 (3 seeds)" in told
        assert "class 0: 5" in view.hover(f"{graph} figure[data-plot=partition] svg", 0.1, 0.35)
        assert ", round 1: 1.67 %" in view.hover(f"{graph} figure[data-plot=nodes] svg", 0.12, 0.1)
        key = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
        focus = f'document.querySelector("{graph} figure[data-plot=curves] svg").focus();'
        assert view.script(focus + key + ";return document.getElementById('hint').textContent").startswith(
            "round"
        )

        # On maps they begin at the cell where the pointer was, the first client's, or enter at the first one.
        for plot, client in (("partition", "c"), ("curvature", "b")):
            focus = f'document.querySelector("{graph} figure[data-plot={plot}] svg[tabindex]").focus();'
            told = view.script(f"{focus}{key};{key};return document.getElementById('hint').textContent")
            assert told.startswith(client)
        mark = "return document.activeElement.querySelector('.mark').getAttribute('visibility')"
        assert view.script(mark) == "visible"

        # Tables go in the order of a column; what is not known comes last.
        head = f"{graph} [data-table=results] th:nth-child(2)"
        rows = f"{graph} [data-table=results] tbody tr td:first-child"
        for order in ("descending", "ascending"):
            view.click(f"{head} button")
            assert view.script(f'return document.querySelector("{head}").ariaSort') == order
            shown = texts(view, rows)
            assert shown == (
                [HOSTILE, "hwa", "fedavg"] if order == "descending" else ["fedavg", "hwa", HOSTILE]
            )

        # Axes change: over bytes, logarithmic, another score.
        choose = (
            "const one = document.querySelector(arguments[0]); one.value = arguments[1];"
            "one.dispatchEvent(new Event('change'))"
        )
        first = f"{graph} figure[data-plot=curves] svg"
        before = view.script(f"return document.querySelector(\"{first} path.series\").getAttribute('d')")
        view.click(f"{graph} figure[data-plot=curves] label:nth-of-type(3) input")
        assert (
            view.script(f"return document.querySelector(\"{first} path.series\").getAttribute('d')") != before
        )
        view.script(choose, f"{graph} figure[data-plot=curves] select[aria-label=over]", "bytes")
        assert "bytes" in view.script(f'return document.querySelector("{first}").ariaLabel')
        view.script(choose, f"{graph} figure[data-plot=curves] select[aria-label=score]", "test_loss")
        assert "test loss" in view.script(f'return document.querySelector("{first}").ariaLabel')
        view.script(choose, f"{graph} figure[data-plot=clients] select", "client")
        assert count(view, f"{graph} figure[data-plot=clients] circle.dot") == 12
        view.script(choose, f"{graph} select[aria-label='compared with']", "0")
        assert count(view, f"{graph} [data-table=significance] tbody tr") == 2

        # By night, and on a phone: nothing is wider than the screen.
        day = view.script("return getComputedStyle(document.body).backgroundColor")
        view.prefer("dark")
        assert view.script("return getComputedStyle(document.body).backgroundColor") != day
        view.click("#theme")
        assert view.script("return getComputedStyle(document.body).backgroundColor") == day
        view.resize(390, 844)
        view.open(page)
        assert view.script("return document.documentElement.scrollWidth") == 390
        assert view.script(f'return document.querySelector("{first}").clientWidth') < 390

        assert view.complaints() == []

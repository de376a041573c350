"""Chromium, driven through chromedriver by the few commands that a test needs."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key under which the protocol names an element."""
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)


def missing() -> str:
    """What this machine lacks; empty where nothing."""
    wanted = {"Chromium": chromium(), "chromedriver": shutil.which("chromedriver")}
    return " and ".join(name for name, path in wanted.items() if path is None)


def chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Browser:
    """A session with one window."""

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, path: str, values: Any = None, method: str = "POST") -> Any:
        body = json.dumps({} if values is None else values).encode() if method == "POST" else None
        request = urllib.request.Request(self._url + path, body, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from None

    def open(self, path: Path) -> None:
        self.call("/url", {"url": path.absolute().as_uri()})

    def script(self, text: str, *values: Any) -> Any:
        return self.call("/execute/sync", {"script": text, "args": values})

    def settle(self) -> None:
        """Wait until the page has been told what has changed, and has been drawn."""
        frames = "requestAnimationFrame(() => requestAnimationFrame(() => arguments[0]()))"
        self.call("/execute/async", {"script": frames, "args": []})

    def click(self, selector: str) -> None:
        # To where nothing that stays at the top of the page covers it.
        self.script("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        found = self.call("/element", {"using": "css selector", "value": selector})[ELEMENT]
        self.call(f"/element/{found}/click")

    def hover(self, selector: str, x: float = 0.5, y: float = 0.5) -> str:
        """Move the pointer to a place in an element, and give what the hint says."""
        self.script("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", selector)
        self.settle()  # a page that moves takes the hint away
        place = self.script(
            "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
            "const at = [box.left + arguments[1] * box.width, box.top + arguments[2] * box.height];"
            "return at.map(Math.round)",
            *(selector, x, y),
        )
        move = {"type": "pointerMove", "duration": 0, "x": place[0], "y": place[1]}
        self.call("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})
        return str(self.script("return document.getElementById('hint').textContent"))

    def protocol(self, command: str, **values: Any) -> Any:
        return self.call("/goog/cdp/execute", {"cmd": command, "params": values})

    def resize(self, width: int, height: int) -> None:
        """A window of so many pixels, from phones on."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.protocol("Emulation.setDeviceMetricsOverride", **size)
        self.settle()

    def prefer(self, scheme: str) -> None:
        """Day or night: `light` or `dark`."""
        self.protocol(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        self.settle()

    def complaints(self) -> list[str]:
        """What the console has said since the last time."""
        return [one["message"] for one in self.call("/se/log", {"type": "browser"})]

    def photograph(self, path: Path, *, whole: bool = True) -> None:
        found = self.protocol("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser until the end of the block, with an empty folder for what it keeps."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert driver.stdout is not None
        said = (re.search(r"started successfully on port (\d+)", line) for line in driver.stdout)
        port = next(found[1] for found in said if found)
        options = {"binary": chromium(), "args": [*OPTIONS, f"--user-data-dir={profile}"]}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        address = f"http://127.0.0.1:{port}/session"
        session = Browser(address).call("", {"capabilities": wanted})["sessionId"]
        one = Browser(f"{address}/{session}")
        try:
            yield one
        finally:
            one.call("", method="DELETE")
    finally:
        driver.terminate()
        driver.communicate(timeout=30)

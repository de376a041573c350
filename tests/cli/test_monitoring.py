"""`consilience monitor` as a user types it."""

from __future__ import annotations

import json
import signal
import urllib.request

import pytest


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["nowhere"], "there is no folder nowhere"),
        (["https://host:80"], "give http://HOST:PORT"),
        (["http://host"], "give http://HOST:PORT"),
        ([".", "--listen", "8050"], "'8050' is no address to listen at: give HOST:PORT"),
        ([".", "--listen", "192.0.2.1:0"], "cannot listen at 192.0.2.1:0"),  # an address that nobody has
    ],
)
def test_bad_input_is_one_line(command, refused, words, line):
    refused(command("monitor", *words), line)


def test_it_says_where_it_is_and_ends_quietly(start, tmp_path):
    process = start("monitor", tmp_path, "--listen", "127.0.0.1:0", "--serve-only")
    url = process.stdout.readline().split()[0]
    with urllib.request.urlopen(url, timeout=60) as answer:
        assert json.load(answer) == {"version": 1, "panels": [], "members": [], "problems": []}
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=60)
    assert (process.returncode, said.strip(), complained) == (0, "", "")

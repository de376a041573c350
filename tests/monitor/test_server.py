"""The server reads and never writes, takes only what it asked for, and says in one line what is wrong."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from consilience.errors import UserError
from consilience.monitor import gathering
from consilience.monitor.gathering import Address, Gathered, checked, page_of
from consilience.monitor.server import Server, listening


def get(server: Server, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_it_answers_get_on_three_paths_and_nothing_else(tmp_path, folders, served):
    server = served(folders.hub(tmp_path / "hub"))
    page = get(server, "/")
    assert (page.status, page.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    assert b"<script src" not in page.read()
    assert json.loads(get(server, "/state.json").read())["panels"][0]["title"] == "federation abc"
    assert json.loads(get(server, "/offer.json").read())["members"][0]["member"] == "hub"
    for path in ("/status.json", "/../hub/status.json", "/hub.safetensors", "//etc/passwd"):
        assert get(server, path).status == 404
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert get(server, "/state.json", method).status == 501


def test_only_its_own_script_may_run_and_it_may_ask_nobody_else(tmp_path, served):
    policy = get(served(tmp_path), "/").getheader("Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert policy.count("'sha256-") == 2


def test_a_page_of_others_cannot_ask_by_a_name_that_leads_here(tmp_path, served):
    server = served(tmp_path)
    assert get(server, "/state.json", Host="evil.example:80").status == 403
    assert get(server, "/state.json", Host=f"localhost:{server.server_port}").status == 200


def test_without_a_page_there_is_only_what_others_ask_for(tmp_path, served):
    server = served(tmp_path, page=False)
    assert [get(server, path).status for path in ("/", "/state.json", "/offer.json")] == [404, 404, 200]


def test_members_on_several_machines_become_one_federation(tmp_path, folders, served):
    first = served(folders.node(tmp_path / "a", 0, {"1": True}, [0.2]), page=False)
    second = served(folders.node(tmp_path / "b", 1, {"0": True}, [0.4]), page=False)
    (panel,) = page_of(Gathered([first.url, second.url]).offer()).panels
    assert [place.name for place in panel.places] == ["0", "1"]
    assert panel.edges == [(0, 1)]
    assert panel.lines[0].score == pytest.approx(0.3)


def test_monitors_that_look_at_each_other_do_not_go_round_in_circles(tmp_path, folders, served):
    first = served(folders.hub(tmp_path / "hub"))
    second = served(first.url)
    assert json.loads(get(second, "/offer.json").read())["members"] == []
    assert len(json.loads(get(second, "/state.json").read())["panels"]) == 1


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("ftp://host:80", "give http://HOST:PORT"),
        ("http://host", "give http://HOST:PORT"),
        ("http://host:80/path", "give http://HOST:PORT"),
        ("http://user:word@host:80", "give http://HOST:PORT"),
        ("http://host:99999", "is no address"),
        ("http://ho st:80", "is no name of a machine"),
        ("file:///etc/passwd", "give http://HOST:PORT"),
    ],
)
def test_bad_addresses_are_one_line(address, line):
    with pytest.raises(UserError, match=line) as raised:
        checked(address)
    assert "\n" not in str(raised.value)


def test_good_addresses_are_taken():
    assert checked("http://10.0.0.7:8050/") == "http://10.0.0.7:8050"
    assert checked("http://[::1]:8050") == "http://[::1]:8050"
    assert listening("[::1]:80") == ("::1", 80)
    for bad in ("8050", "host:", ":80", "host:x", "host:70000"):
        with pytest.raises(UserError, match="give HOST:PORT"):
            listening(bad)


def test_a_port_that_is_taken_is_one_line(tmp_path, served):
    server = served(tmp_path)
    with pytest.raises(UserError, match=r"cannot listen at .*; choose another by --listen"):
        Server(Gathered([str(tmp_path)]), port=server.server_port)


@pytest.fixture
def answering():
    """A server of somebody else, which answers as it is told."""
    begun = []

    def answer(body: bytes, status: int = 200, **headers: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args):
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        begun.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield answer
    for server, thread in begun:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"hello", "not what a monitor says"),
        (b"[]", "not what a monitor says"),
        (b'{"version": 2}', "not what a monitor says (version"),
        (b'{"members": [{"run": "a"}]}', "not what a monitor says (members.0.member"),
        (b'{"panels": [{"title": "a", "places": 5}]}', "not what a monitor says (panels.0.places"),
    ],
)
def test_what_others_say_is_taken_only_in_its_form(answering, body, words):
    offer = Address(answering(body)).offer()
    assert (offer.panels, offer.members) == ([], [])
    assert words in offer.problems[0]
    assert "\n" not in offer.problems[0]


def test_numbers_and_texts_of_others_are_made_harmless(answering):
    member = {"run": "r", "member": "x" * 1000, "round": -5, "score": 1e400, "bytes_up": 1e300, "time": "now"}
    (found,) = Address(answering(json.dumps({"members": [member]}).encode())).offer().members
    assert (len(found.member), found.round, found.score, found.time) == (300, 0, None, None)
    assert found.bytes_up == 2**62


def test_too_much_a_redirection_and_silence_are_problems(answering, monkeypatch):
    monkeypatch.setattr(gathering, "BYTES", 1000)
    elsewhere = answering(b'{"members": []}')
    (large,) = Address(answering(b" " * 2000)).offer().problems
    (moved,) = Address(answering(b"", status=302, Location=elsewhere)).offer().problems
    (silent,) = Address("http://127.0.0.1:9").offer().problems
    assert "says more than" in large
    assert "it answers 302" in moved
    assert "no answer" in silent


def test_a_proxy_is_not_asked(answering, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert urllib.request.getproxies()["http"] == "http://127.0.0.1:9"
    assert Address(answering(b"{}")).offer().problems == []

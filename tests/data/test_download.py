from __future__ import annotations

import hashlib
import http.client
import io
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from consilience.data import download, get
from consilience.data.sets import SOURCES, PublishedFile, find
from consilience.errors import UserError

CONTENT = bytes(range(256)) * 5000
NAME = "file.bin"


@dataclass
class Site:
    """A server on this machine that can cut connections, and remembers what it was asked for."""

    url: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)  # bytes after which to cut each coming connection
    asked: list[str | None] = field(default_factory=list)  # the Range header of every request
    redirect: str | None = None  # where to send the next request
    reason: str | None = None  # why there is no such file

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        wanted = handler.headers["Range"]
        self.asked.append(wanted)
        if self.redirect is not None:
            handler.send_response(302)
            handler.send_header("Location", self.redirect)
            handler.end_headers()
            self.redirect = None
            return
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if handler.path != f"/{NAME}":
            handler.send_error(404, self.reason)
        elif start and start >= len(self.content):
            handler.send_error(416)
        else:
            body = self.content[start:]
            handler.send_response(206 if start else 200)
            handler.send_header("Content-Length", str(len(body)))
            if start:
                span = f"bytes {start}-{len(self.content) - 1}/{len(self.content)}"
                handler.send_header("Content-Range", span)
            handler.end_headers()
            handler.wfile.write(body[: self.cuts.pop(0)] if self.cuts else body)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    served = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    yield served
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set "own", published as one file."""
    digest = f"md5:{hashlib.md5(CONTENT).hexdigest()}"
    file = PublishedFile(f"own/{NAME}", f"https://example.org/data/{NAME}", digest, len(CONTENT))
    publish(monkeypatch, file)


def publish(monkeypatch: pytest.MonkeyPatch, file: PublishedFile) -> None:
    source = replace(find("mnist"), name="own", files=(file,))
    monkeypatch.setattr(download, "find", lambda name: source if name == "own" else find(name))


def quiet(name: str, done: int, total: int | None) -> None:
    pass


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_whole_download_and_nothing_the_second_time(site: Site, tmp_path: Path):
    reports: list[tuple[str, int, int | None]] = []
    paths = get("own", tmp_path, site.url, lambda *report: reports.append(report))
    assert paths == [tmp_path / "own" / NAME]
    assert paths[0].read_bytes() == CONTENT
    assert names(tmp_path / "own") == [NAME]
    assert reports[-1] == (NAME, len(CONTENT), len(CONTENT))
    assert get("own", tmp_path, site.url, quiet) == paths
    assert site.asked == [None]


def test_a_damaged_file_is_downloaded_again(site: Site, tmp_path: Path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / NAME).write_bytes(CONTENT[:-1])
    assert get("own", tmp_path, site.url, quiet)[0].read_bytes() == CONTENT


@pytest.mark.parametrize("digest", [f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", None])
def test_other_digests(digest: str | None, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = PublishedFile(f"own/{NAME}", f"https://example.org/{NAME}", digest, len(CONTENT))
    publish(monkeypatch, file)
    assert get("own", tmp_path, site.url, quiet)[0].read_bytes() == CONTENT
    publish(monkeypatch, replace(file, path="own/second", size=len(CONTENT) - 1, digest=None))
    with pytest.raises(UserError, match="1280000 bytes instead of 1279999"):
        get("own", tmp_path, site.url, quiet)


def test_a_cut_connection_is_resumed(site: Site, tmp_path: Path):
    site.cuts = [1000, 500_000]
    assert get("own", tmp_path, site.url, quiet)[0].read_bytes() == CONTENT
    assert site.asked == [None, "bytes=1000-", "bytes=501000-"]


def test_a_part_file_is_resumed_by_the_next_call(site: Site, tmp_path: Path):
    site.cuts = [1000, 0]
    with pytest.raises(UserError, match=r"cut after 1000 bytes; run it again to resume"):
        get("own", tmp_path, site.url, quiet)
    assert names(tmp_path / "own") == [f"{NAME}.part"]
    assert get("own", tmp_path, site.url, quiet)[0].read_bytes() == CONTENT
    assert site.asked[-1] == "bytes=1000-"


@pytest.mark.parametrize("part", [CONTENT[:1000], CONTENT, CONTENT + b"!", b"?" * 2 * len(CONTENT)])
@pytest.mark.parametrize("ranges", [True, False])
def test_any_length_of_part_file(part: bytes, ranges: bool, site: Site, tmp_path: Path):
    site.ranges = ranges
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / f"{NAME}.part").write_bytes(part)
    assert get("own", tmp_path, site.url, quiet)[0].read_bytes() == CONTENT
    assert names(tmp_path / "own") == [NAME]


def test_a_server_without_ranges_that_always_cuts_is_given_up(site: Site, tmp_path: Path):
    site.ranges = False
    site.cuts = [1000] * 9
    with pytest.raises(UserError, match="cut after 1000 bytes"):
        get("own", tmp_path, site.url, quiet)
    assert len(site.asked) == 2


@pytest.mark.parametrize(
    "content",
    [CONTENT[:-1] + b"?", b"<html>not found</html>", CONTENT * 2],
    ids=["changed", "page", "too long"],
)
def test_wrong_content_is_refused_and_removed(content: bytes, site: Site, tmp_path: Path):
    site.content = content
    with pytest.raises(UserError, match=rf"{NAME}: md5 [0-9a-f]{{32}} instead of .*deleted") as caught:
        get("own", tmp_path, site.url, quiet)
    assert "\n" not in str(caught.value)
    assert names(tmp_path / "own") == []


def test_a_wrong_part_file_is_refused_and_removed(site: Site, tmp_path: Path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / f"{NAME}.part").write_bytes(b"?" * 1000)
    with pytest.raises(UserError, match="instead of"):
        get("own", tmp_path, site.url, quiet)
    assert names(tmp_path / "own") == []
    assert get("own", tmp_path, site.url, quiet)[0].read_bytes() == CONTENT


def test_without_a_network_one_line_says_what_to_put_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as silent:  # bound but not listening: connections are refused
        silent.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UserError, match=re.escape(f"cannot download {closed}/train-images")) as caught:
            get("mnist", tmp_path, closed, quiet)
    line = str(caught.value)
    assert "\n" not in line
    for file in SOURCES["mnist"].files:
        assert file.digest is not None
        assert all(part in line for part in (str(tmp_path / file.path), file.url, file.digest.split(":")[1]))


def test_an_absent_file_is_one_line(site: Site, tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot download .*/nowhere/file.bin \(Not Found\)"):
        get("own", tmp_path, f"{site.url}/nowhere/", quiet)


def test_an_unwritable_directory_is_one_line(site: Site, tmp_path: Path):
    (tmp_path / "own").write_bytes(b"a file where the folder should be")
    with pytest.raises(UserError, match=r"cannot download .*File exists"):
        get("own", tmp_path, site.url, quiet)


@pytest.mark.parametrize("mirror", ["http://example.org", "ftp://127.0.0.1", "file:///tmp", "example.org"])
def test_only_https_is_accepted_from_elsewhere(mirror: str, tmp_path: Path):
    with pytest.raises(UserError, match="only https"):
        get("own", tmp_path, mirror, quiet)


def test_a_redirection_to_plain_http_is_refused(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Another name of this machine, taken off the list, stands for a foreign host.
    monkeypatch.setattr(download, "LOOPBACK", frozenset({"127.0.0.1"}))
    site.redirect = site.url.replace("127.0.0.1", "localhost") + f"/{NAME}"
    with pytest.raises(UserError, match="will not download from http://localhost"):
        get("own", tmp_path, site.url, quiet)
    assert len(site.asked) == 1  # nobody was asked there
    assert names(tmp_path / "own") == []


@pytest.mark.parametrize("place", ["http://127.0.0.1/x", "http://example.org/x", "ftp://example.org/x"])
def test_a_redirection_never_leaves_https(place: str):
    request = urllib.request.Request("https://example.org/x")
    handler, headers = download._Redirections(), http.client.HTTPMessage()
    with pytest.raises(UserError, match=f"will not download from {place}, where https://example.org/x leads"):
        handler.redirect_request(request, io.BytesIO(), 302, "Found", headers, place)
    followed = handler.redirect_request(request, io.BytesIO(), 302, "Found", headers, "https://example.com/y")
    assert followed is not None
    assert followed.full_url == "https://example.com/y"


def test_an_address_that_is_none_is_one_line(site: Site, tmp_path: Path):
    site.redirect = "https://[::1/"
    with pytest.raises(UserError, match=r"cannot download .*\(Invalid IPv6 URL\)"):
        get("own", tmp_path, site.url, quiet)


def test_what_a_server_says_does_nothing_to_a_terminal(site: Site, tmp_path: Path):
    site.reason = "\x1b[2JAll is well\x07"
    with pytest.raises(UserError) as caught:
        get("own", tmp_path, f"{site.url}/nowhere", quiet)
    assert r"(\x1b[2JAll is well\x07)" in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_mirror_variable_and_the_plain_report(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("CONSILIENCE_MIRROR", site.url)
    monkeypatch.setenv("CONSILIENCE_DATA", str(tmp_path))
    assert get("own") == [tmp_path / "own" / NAME]
    assert capsys.readouterr().err == "downloading file.bin (1.3 MB)\n"


def test_a_terminal_gets_a_progress_bar(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    get("own", tmp_path, site.url)
    assert "1.3/1.3 MB" in capsys.readouterr().err


def test_data_sets_without_a_download(tmp_path: Path):
    assert get("mnist-sample", tmp_path) == []
    with pytest.raises(UserError, match=r"`\./preprocess\.sh ") as caught:
        get("femnist", tmp_path)
    assert str(tmp_path / "femnist") in str(caught.value)
    with pytest.raises(UserError, match="unknown data set 'mnits'; did you mean 'mnist'"):
        get("mnits", tmp_path)


def test_the_catalogue_is_well_formed():
    for source in SOURCES.values():
        for file in source.files:
            assert file.url.startswith("https://")
            assert file.path.endswith(f"/{file.name}") or file.path == file.name
            assert re.fullmatch("md5:[0-9a-f]{32}", file.digest or "")
            assert file.size
        assert bool(source.files) == (source.name not in ("mnist-sample", "femnist", "femnist-letters"))

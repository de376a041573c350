"""The server behind the page: it answers GET, knows three paths, and changes nothing."""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from urllib.parse import urlsplit

from consilience.errors import UserError
from consilience.monitor.gathering import OFFER, Gathered, page_of
from consilience.monitor.shown import Offer
from consilience.report.page.rendering import resource, source_digest

STATE = "/state.json"
"""Where the page looks for what it shows."""
PORT = 8050


def listening(written: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT."""
    host, _, port = written.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{written!r} is no address to listen at: give HOST:PORT, e.g. 127.0.0.1:{PORT}")
    return host, int(port)


class Server(ThreadingHTTPServer):
    """Serves what is gathered.

    Args:
        gathered: Where it comes from.
        host: By default only this machine reaches it.
        port: 0: any that is free.
        page: Whether there is a page, or JSON for other monitors alone.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, gathered: Gathered, host: str = "127.0.0.1", port: int = PORT, *, page: bool = True
    ) -> None:
        self.gathered, self.has_page = gathered, page
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._reading = threading.Lock()
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UserError(f"cannot listen at {host}:{port}: {reason}; choose another by --listen") from None

    def server_bind(self) -> None:
        """Bind without asking which name the machine has: that may ask a network."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def url(self) -> str:
        """Where it is found."""
        host = f"[{self.server_name}]" if ":" in self.server_name else self.server_name
        return f"http://{host}:{self.server_port}"

    def offer(self, *, own: bool = False) -> Offer:
        """What is known now; one look at a time, since files are read on from where the last one ended."""
        with self._reading:
            return self.gathered.offer(own=own)

    def expects(self, host: str | None) -> bool:
        """Whether a request is for this server: pages of others may lead their names to this machine."""
        if not _loopback(self.server_name):
            return True  # it is open to a network anyway
        name = urlsplit(f"//{host}").hostname if host and re.fullmatch(r"[\w.:\[\]-]+", host) else None
        return name is not None and (name == "localhost" or _loopback(name))

    @cached_property
    def page(self) -> bytes:
        """The page."""
        written = files("consilience.monitor").joinpath("page.html").read_text(encoding="utf-8")
        for name in ("common.css", "common.js"):
            written = written.replace(f"/* {name} */", resource(name))
        return written.encode()

    @cached_property
    def policy(self) -> str:
        """What the page may do: run its own script, ask this server, and nothing else."""
        return (
            f"default-src 'none'; script-src {self._digest('script')}; style-src {self._digest('style')}; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )

    def _digest(self, element: str) -> str:
        inside = re.search(rf"<{element}>(.*?)</{element}>".encode(), self.page, flags=re.DOTALL)
        assert inside is not None
        return source_digest(inside[1])


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: Server
    server_version, sys_version = "consilience", ""
    timeout = 30

    def do_GET(self) -> None:
        """Answer with the page, what it shows, or what other monitors are told."""
        path = urlsplit(self.path).path
        if not self.server.expects(self.headers.get("Host")):
            self._send(HTTPStatus.FORBIDDEN, b"this monitor has another address\n", "text/plain")
        elif path == "/" and self.server.has_page:
            self._send(HTTPStatus.OK, self.server.page, "text/html", policy=self.server.policy)
        elif path == STATE and self.server.has_page:
            shown = page_of(self.server.offer()).model_dump_json()
            self._send(HTTPStatus.OK, shown.encode(), "application/json")
        elif path == OFFER:
            offered = self.server.offer(own=True).model_dump_json()
            self._send(HTTPStatus.OK, offered.encode(), "application/json")
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is nothing here\n", "text/plain")

    def _send(self, status: HTTPStatus, body: bytes, kind: str, policy: str = "default-src 'none'") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: a page that asks every other second is no news."""

"""Connections between two nodes that can be cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Door:
    """A port that leads to another one, until it is closed."""

    def __init__(self, port: int) -> None:
        self._target, self._open, self._pairs = port, True, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                if not self._open:
                    near.close()
                    far.close()
                    continue
                self._pairs += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut the connection, and let no other be made."""
        self._open = False
        for one in self._pairs:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def open(self) -> None:
        """Let connections be made again."""
        self._open = True

    def end(self) -> None:
        """Close it for ever."""
        self._listener.close()
        self.close()

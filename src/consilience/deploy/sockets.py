"""Orders and answers over a Unix socket, between a short-lived process and the resident one that holds data.

A frame is a fixed head (a mark, a number, the length of what follows) and its bytes. The length is checked
before anything is read, and memory grows only with what has arrived. Nothing here imports torch: whoever
hands over an order may be started anew for every message.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

from consilience.deploy.refused import RefusedError
from consilience.errors import UserError

HEAD = struct.Struct(">4sqQ")
ORDER, ANSWER, REFUSAL = b"cso1", b"csa1", b"csr1"
"""What a frame is: an order, an answer to it, or the reason why there is none."""
PIECE = 2**20
LARGEST_ANSWER = 2**36
"""How many bytes an answer has at most; what it should have, the hub knows."""
LONGEST_REASON = 2**12


def send(connection: socket.socket, kind: bytes, number: int, data: bytes) -> None:
    """Send one frame."""
    connection.sendall(HEAD.pack(kind, number, len(data)))
    connection.sendall(data)


def receive(connection: socket.socket, largest: dict[bytes, int]) -> tuple[bytes, int, bytes]:
    """The next frame: what it is, its number and its bytes.

    Args:
        connection: The socket.
        largest: How many bytes each kind of frame may have; other kinds are refused.
    """
    kind, number, length = HEAD.unpack(_exactly(connection, HEAD.size))
    if kind not in largest:
        raise RefusedError(f"a frame begins with {kind!r}")
    if length > largest[kind]:
        raise RefusedError(f"a frame announces {length:,} bytes, more than the {largest[kind]:,} it may have")
    return kind, number, _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    """So many bytes; memory grows with what arrives, not with what was announced."""
    found = bytearray()
    while len(found) < count:
        piece = connection.recv(min(PIECE, count - len(found)))
        if not piece:
            raise RefusedError(f"the connection ended after {len(found):,} of {count:,} bytes")
        found += piece
    return bytes(found)


def hand_over(path: Path, data: bytes, accepted: int, timeout: float) -> bytes:
    """The answer of the site that listens at a socket to an order.

    Args:
        path: The socket's file.
        data: The order.
        accepted: Which of the site's answers the hub has accepted.
        timeout: How many seconds it may be silent.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        try:
            connection.connect(os.fspath(path))
            send(connection, ORDER, accepted, data)
            kind, _, answer = receive(connection, {ANSWER: LARGEST_ANSWER, REFUSAL: LONGEST_REASON})
        except TimeoutError:
            raise RefusedError(f"the site at {path} was silent for {timeout:g} s") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise RefusedError(f"no site answers at {path}: {reason}; start `consilience site`") from None
    if kind == REFUSAL:
        raise RefusedError(answer.decode(errors="replace"))
    return answer


def listen(path: Path) -> socket.socket:
    """A socket at a path that only this user can reach; a file left behind by a dead process is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        if not path.is_socket():
            raise UserError(f"{path} is no socket")
        if _answers(path):
            raise UserError(f"another site listens at {path}")
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(os.fspath(path))
    except OSError as error:  # a path of more than about 100 bytes, say
        listener.close()
        raise UserError(f"cannot listen at {path}: {error.strerror or error}") from None
    finally:
        os.umask(before)
    listener.listen()
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(os.fspath(path))
        except OSError:
            return False
    return True

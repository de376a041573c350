"""A site that stays behind a socket: framing, permissions, and what it keeps to itself."""

from __future__ import annotations

import contextlib
import socket
import stat
import threading

import pytest

from consilience.config.config import read_config
from consilience.deploy import sockets
from consilience.deploy.agreeing import agree
from consilience.deploy.journal import AUDIT, Journal, read_lines
from consilience.deploy.refused import RefusedError
from consilience.deploy.resident import Resident, site_in, stationed
from consilience.deploy.secret import secret_of
from consilience.errors import UserError

LIMITS = {sockets.ORDER: 1000}


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(10)
        right.settimeout(10)
        yield left, right


@pytest.mark.parametrize("data", [b"", b"x", bytes(1000)])
def test_frames_arrive_whole(data, pair):
    left, right = pair
    sockets.send(left, sockets.ORDER, -1, data)
    assert sockets.receive(right, LIMITS) == (sockets.ORDER, -1, data)


@pytest.mark.parametrize("length", [1001, 2**63, 2**64 - 1])
def test_a_length_is_refused_before_anything_is_read(length, pair):
    left, right = pair
    left.sendall(sockets.HEAD.pack(sockets.ORDER, 0, length))
    with pytest.raises(RefusedError, match=f"announces {length:,} bytes"):
        sockets.receive(right, LIMITS)


def test_other_frames_and_torn_ones_are_refused(pair):
    left, right = pair
    sockets.send(left, b"GET ", 0, b"")
    with pytest.raises(RefusedError, match="begins with"):
        sockets.receive(right, LIMITS)
    left.sendall(sockets.HEAD.pack(sockets.ORDER, 0, 100) + b"half")
    left.close()
    with pytest.raises(RefusedError, match="ended after 4 of 100"):
        sockets.receive(right, LIMITS)


def test_only_its_user_can_reach_a_socket(tmp_path):
    path = tmp_path / "deep" / "site"
    with sockets.listen(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(UserError, match="another site listens"):
            sockets.listen(path)
    with sockets.listen(path):  # what a dead process left behind
        pass
    other = tmp_path / "file"
    other.write_text("precious")
    with pytest.raises(UserError, match="is no socket"):
        sockets.listen(other)
    assert other.read_text() == "precious"


def test_nobody_there_is_one_line(tmp_path):
    with pytest.raises(RefusedError, match=r"no site answers at .*missing: .*consilience site"):
        sockets.hand_over(tmp_path / "missing", b"order", 0, 5)


def test_a_silent_site_is_not_waited_for(tmp_path):
    with sockets.listen(tmp_path / "s"), pytest.raises(RefusedError, match=r"silent for 0\.05 s"):
        sockets.hand_over(tmp_path / "s", b"order", 0, 0.05)


def test_a_reason_travels(tmp_path):
    def refuse(listener):
        connection, _ = listener.accept()
        with connection:
            sockets.receive(connection, LIMITS)
            sockets.send(connection, sockets.REFUSAL, 0, b"not today")

    with sockets.listen(tmp_path / "s") as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        with pytest.raises(RefusedError, match="not today"):
            sockets.hand_over(tmp_path / "s", b"order", 0, 10)
        thread.join()


def test_who_only_looks_whether_a_site_is_there_is_not_refused(tmp_path):
    agreement = agree(read_config({"clients": 2, "model": {"name": "mlp", "hidden": [2]}}))
    with stationed(tmp_path / "o", tmp_path / "s") as listener:
        site = site_in(tmp_path / "o", agreement, 0, agreement.dealt(0))
        resident = Resident(site, Journal(tmp_path / "o", agreement.terms.run, "0"))
        thread = threading.Thread(target=_until_closed, args=(resident, listener))
        thread.start()
        with pytest.raises(UserError, match="another site listens"):
            sockets.listen(tmp_path / "s")
        with pytest.raises(RefusedError, match="not a whole consilience message"):
            sockets.hand_over(tmp_path / "s", b"order", 0, 10)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    (line,) = read_lines(tmp_path / "o" / AUDIT)
    assert "not a whole consilience message" in line["reason"]


def _until_closed(resident, listener):
    with contextlib.suppress(OSError):
        resident.attend(listener)


def test_a_secret_is_drawn_once_and_kept(tmp_path):
    values = {"clients": 2, "model": {"name": "mlp", "hidden": [2]}}
    agreement = agree(read_config(values))
    drawn = secret_of(tmp_path / "a", agreement)
    assert drawn is not None
    assert drawn == secret_of(tmp_path / "a", agreement) != secret_of(tmp_path / "b", agreement)
    assert stat.S_IMODE((tmp_path / "a" / "secret").stat().st_mode) == 0o600
    assert secret_of(tmp_path / "c", agree(read_config({**values, "deploy": {"secret": "seed"}}))) is None
    (tmp_path / "a" / "secret").write_text("")
    with pytest.raises(UserError, match="does not hold"):
        secret_of(tmp_path / "a", agreement)

"""Refusals are written down at both ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.deploy.journal import Journal, read_lines
from consilience.deploy.zenoh.auditing import REPEATED, Audit
from consilience.deploy.zenoh.words import Word


def _audit(folder: Path, number: int, neighbour: int) -> Audit:
    return Audit(Journal(folder / str(number), "0123", str(number)), number, [neighbour])


def _word(audit: Audit, sender: int, receiver: int) -> Word:
    refused, reason = audit.about(receiver)
    return Word(sender, receiver, 7, 1, 0, 0, 0, 1, ends=0, refused=refused, reason=reason)


def test_a_refusal_is_written_down_at_both_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    receiver, liar = _audit(tmp_path, 0, 3), _audit(tmp_path, 3, 0)
    liar.hear(_word(receiver, 0, 3))  # nothing was refused yet
    receiver.round, receiver.exchange = 2, 5
    receiver.refuse(3, "it calls itself 1")
    for _ in range(3):  # the same word again and again
        liar.hear(_word(receiver, 0, 3))
    (here,) = read_lines(tmp_path / "0" / "audit.jsonl")
    assert (here["from"], here["reason"], here["round"]) == ("3", "it calls itself 1", 2)
    (there,) = read_lines(tmp_path / "3" / "audit.jsonl")
    assert (there["from"], there["reason"]) == ("0", "it has refused what this node said: it calls itself 1")
    receiver.exchange = 6
    receiver.refuse(3, "it calls itself 1")
    liar.hear(_word(receiver, 0, 3))
    assert len(read_lines(tmp_path / "3" / "audit.jsonl")) == 2
    receiver.forget(3)  # it is another process now
    liar.hear(_word(receiver, 0, 3))
    assert len(read_lines(tmp_path / "3" / "audit.jsonl")) == 2
    shown = [record.message for record in caplog.records]
    assert shown.count("node 3: 0: it has refused what this node said: it calls itself 1") == 1
    assert shown.count("node 0: 3 is refused: it calls itself 1") == 2


def test_what_repeats_is_counted_and_not_written_down(tmp_path: Path) -> None:
    audit = _audit(tmp_path, 0, 3)
    for _ in range(REPEATED + 30):
        audit.refuse(3, "too large")
    audit.refuse("node-4", "it is no neighbour")
    assert audit.count == REPEATED + 31
    lines = read_lines(tmp_path / "0" / "audit.jsonl")
    assert len(lines) == REPEATED + 1
    assert "counted" in lines[REPEATED - 1]["reason"]
    assert lines[-1]["from"] == "node-4"


def test_what_concerns_a_node_itself_is_written_down_and_shown(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    audit = _audit(tmp_path, 0, 3)
    audit.note(0, "its certificate is about to expire")
    audit.note(3, "its certificate has expired")
    assert [line["from"] for line in read_lines(tmp_path / "0" / "audit.jsonl")] == ["0", "3"]
    assert caplog.messages[0] == "node 0: its certificate is about to expire"
    assert caplog.messages[1] == "node 0: 3: its certificate has expired"
    assert audit.count == 0

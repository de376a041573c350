"""What travels in Flower's messages: a state is one array of bytes, and a number or two stand beside it.

Flower gives every array a message of its own to its store, so that one array for each tensor would be many
small objects; as a value of a ConfigRecord bytes are thirty times as slow. Nothing here imports torch.
"""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from consilience.deploy.refused import RefusedError

STATE, FACTS, BYTES = "state", "facts", "bytes"
FORMAT = "consilience/1"
"""How the bytes of an array were made: the wire format."""

Fact = int | str


def packed(data: bytes, **facts: Fact) -> RecordDict:
    """The content of a message with a state."""
    array = Array(dtype="uint8", shape=(len(data),), stype=FORMAT, data=data)
    return RecordDict({STATE: ArrayRecord({BYTES: array}), FACTS: ConfigRecord(dict(facts))})


def said(**facts: Fact) -> RecordDict:
    """The content of a message without a state."""
    return RecordDict({FACTS: ConfigRecord(dict(facts))})


def unpacked(content: RecordDict) -> bytes:
    """The state of a message, as bytes; whether they are a whole one is for the receiver to check."""
    record = content.array_records.get(STATE)
    array = None if record is None else record.get(BYTES)
    if record is None or array is None or len(record) != 1 or array.stype != FORMAT:
        reason = _facts(content).get("refused")
        raise RefusedError(str(reason)[:500] if reason else "it holds no state")
    data: bytes = array.data
    return data


def fact(content: RecordDict, name: str) -> int:
    """A number that stands in a message."""
    found = _facts(content).get(name)
    if not isinstance(found, int) or isinstance(found, bool):
        raise RefusedError(f"it does not say its {name}")
    return found


def _facts(content: RecordDict) -> ConfigRecord:
    return content.config_records.get(FACTS) or ConfigRecord()

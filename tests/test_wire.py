"""The wire format: what goes in comes out, damage is noticed, and sizes are known beforehand."""

from __future__ import annotations

import dataclasses
import json
import math
import pickletools
import tracemalloc

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from consilience import heads
from consilience.exchange.traffic import row_bytes
from consilience.types import State
from consilience.wire import (
    Header,
    WireError,
    decode,
    decode_tensors,
    encode,
    encode_tensors,
    message_bytes,
)
from scorecard.frames import judge
from scorecard.mutated_frames import crowded, frames

SHARED = torch.tensor([1.0, -2.0, 3.0, 0.5, 7.0])
MESSAGES: dict[str, State] = {
    "types": {
        "params": {
            "f32": torch.randn(2, 3),
            "f64": torch.randn(4).double(),
            "i64": torch.arange(5),
            "bool": torch.tensor([True, False, True]),
            "bf16": torch.randn(3).bfloat16(),
        }
    },
    "scalars": {"count": {"n": torch.tensor(3), "x": torch.tensor(0.5), "yes": torch.tensor(True)}},
    "order": {
        "z": {"b": torch.ones(1), "a": torch.zeros(1)},
        "a": {"z.w": torch.ones(2), "a/b": torch.ones(3)},
    },
    "empty tensor": {"params": {"w": torch.zeros(0, 3), "b": torch.ones(2)}},
    "marks": {"params": {f'{letter}", ': torch.ones(1) for letter in range(50)}},
    "names": {"params": {'quote" and \\': torch.ones(1), "größe": torch.ones(2)}},
    "not contiguous": {"params": {"t": torch.randn(3, 4).T, "expanded": torch.ones(1).expand(5)}},
    "empty groups": {"first": {}, "params": {"w": torch.ones(2)}, "größe": {}, "last": {}},
    "one tensor twice": {"params": {"w": SHARED}, "anchor": {"w": SHARED}},
    "parts of one tensor": {"params": {"a": SHARED[:2], "b": SHARED[2:], "c": SHARED[1:3], "d": SHARED[:0]}},
    "special numbers": {"params": {"w": torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e-45])}},
}
HEADERS = [Header(0, 0, 60), Header(3, -1, 0), Header(9_999_999_999, 9_999_999_999, 999_999_999_999_999)]

TYPES = [torch.float32, torch.float64, torch.int64, torch.bool, torch.int32, torch.float16]


@st.composite
def tensors(draw) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(TYPES))
    count = math.prod(shape)
    values = draw(st.lists(st.integers(-100, 100), min_size=count, max_size=count))
    return torch.tensor(values).reshape(shape).to(dtype)


NAMES = st.text(min_size=1, max_size=8).filter(lambda text: "/" not in text and text != "header")
STATES = st.dictionaries(NAMES, st.dictionaries(NAMES, tensors(), max_size=3), max_size=3).filter(
    lambda state: any(state.values())
)


def bits(state: State) -> list:
    """Everything about a state, in order, such that == is equality bit for bit."""
    return [
        (
            group,
            name,
            value.dtype,
            tuple(value.shape),
            value.contiguous().reshape(-1).view(torch.uint8).tolist(),
        )
        for group, params in state.items()
        for name, value in params.items()
    ]


def check_round_trip(message: State, header: Header) -> None:
    data = encode(message, header)
    back, found = decode(data)
    assert list(back) == list(message)
    assert bits(back) == bits(message)
    assert found == header
    assert encode(back, found) == data
    sizes = message_bytes(message)
    assert sum(sizes.values()) == len(data)
    assert list(sizes) == [*(group for group, params in message.items() if params), "header"]


@pytest.mark.parametrize("header", HEADERS, ids=str)
@pytest.mark.parametrize("name", MESSAGES)
def test_round_trip_and_size(name, header):
    check_round_trip(MESSAGES[name], header)


@given(STATES, st.integers(0, 10**9), st.integers(-1, 10**9))
def test_round_trip_and_size_of_random_states(message, round_number, sender):
    check_round_trip(message, Header(round_number, sender, 60))


def test_sizes_by_group_are_those_of_the_tensors():
    message = {"params": {"w": torch.ones(3), "b": torch.ones(2)}, "none": {}, "n": {"n": torch.tensor(1)}}
    sizes = message_bytes(message)
    assert {group: size for group, size in sizes.items() if group != "header"} == {"params": 20, "n": 8}
    assert sum(sizes.values()) == len(encode(message, Header(0, 0, 60)))
    stacked = {
        group: {k: v.expand(4, *v.shape) for k, v in params.items()} for group, params in message.items()
    }
    assert row_bytes(stacked) == sizes


@pytest.mark.parametrize("message", [{}, {"params": {}}, {"params": {}, "buffers": {}}])
def test_an_empty_message_is_no_bytes(message):
    assert encode(message, Header(1, 2, 60)) == b""
    assert message_bytes(message) == {}


def again(message: State, header: Header) -> bytes:
    return encode(message, header, empty=True)


def small() -> tuple[State, bytes]:
    message = {
        "params": {"w": torch.tensor([1.0, 2.0]), "a": torch.tensor(True)},
        "buffers": {"n": torch.tensor(3)},
    }
    return message, encode(message, Header(7, 2, 60))


def test_every_damaged_byte_is_noticed():
    _, data = small()
    for place in range(len(data)):
        for value in {0, 9, 10, 32, 34, 92, 255, *range(48, 58), data[place] ^ 1, data[place] ^ 128} - {
            data[place]
        }:
            with pytest.raises(WireError):
                decode(data[:place] + bytes([value]) + data[place + 1 :])


@pytest.mark.parametrize(("read", "write"), [(decode, again), (decode_tensors, encode_tensors)])
def test_frames_that_nobody_sends_are_refused_or_what_is_written(read, write):
    """Scorecard 16 asks the same of 10,000."""
    found = [judge(data, read, write).refused for _, data in frames(400)]
    assert sum(found) > len(found) / 2


def test_crowded_frames_are_refused_before_they_become_objects():
    there = list(crowded(40_000))
    tracemalloc.start()
    try:
        for what, data in there:
            verdict = judge(data)
            assert verdict.refused, what
            assert verdict.amplified < 6, what
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", MESSAGES)
def test_bytes_are_those_of_safetensors(name):
    """Anybody's reader of safetensors reads them, and files of earlier versions are still read."""
    data = encode(MESSAGES[name], Header(0, 0, 60))
    found = safetensors.torch.load(data)
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert safetensors.torch.save(found, metadata) == data
    message = {
        f"{group}/{name}": value for group, params in MESSAGES[name].items() for name, value in params.items()
    }
    assert {name: value.dtype for name, value in found.items()} == {n: v.dtype for n, v in message.items()}


def test_all_types_lie_as_safetensors_puts_them():
    values = {code: torch.zeros(2, dtype=dtype) for code, dtype in reversed(heads.TYPES.items())}
    data = encode_tensors(values, {})
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    assert safetensors.torch.save(values, metadata) == data
    assert list(decode_tensors(data)[0]) == list(values)


@pytest.mark.parametrize(
    "header",
    [
        Header(-1, 0, 0),
        Header(10**10, 0, 0),
        Header(0, -2, 0),
        Header(0, 10**10, 0),
        Header(0, 0, -1),
        Header(0, 0, 10**15),
        Header(0, 0, 0, exchange=100_000),
        Header(0, 0, 0, receiver=-2),
        Header(0, 0, 0, run="0" * 17),
        Header(0, 0, 0, run="a-"),
        Header(0, 0, 0, kind="other"),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_header_that_could_not_be_read_is_not_written(header):
    with pytest.raises(ValueError, match="message"):
        encode({"params": {"w": torch.ones(1)}}, header)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"w" * 1025: torch.ones(1)}, "is no name"),
        ({"__metadata__": torch.ones(1)}, "is no name"),
        ({"w": torch.zeros(2, dtype=torch.complex128)}, "complex128"),
        ({"w": torch.zeros([1] * 65)}, "a shape that no tensor has"),
    ],
)
def test_a_tensor_that_could_not_be_read_is_not_written(tensors, reason):
    with pytest.raises(ValueError, match=reason):
        encode_tensors(tensors, {})


def test_more_tensors_than_a_message_may_have_are_not_written_and_not_read(monkeypatch):
    monkeypatch.setattr(heads, "MESSAGE", dataclasses.replace(heads.MESSAGE, tensors=100))
    many = {str(number): torch.zeros(0) for number in range(101)}
    with pytest.raises(ValueError, match="101 tensors are more"):
        encode({"params": many}, Header(0, 0, 0))
    data = encode_tensors({f"params/{name}": value for name, value in many.items()}, WHOLE)
    assert len(decode_tensors(data)[0]) == len(many)  # a file may have them
    with pytest.raises(WireError, match="too many"):
        decode(data)


@pytest.mark.parametrize("length", [2**24 + 1, 2**31, 2**63, 2**64 - 1])
def test_a_long_head_is_refused_before_it_is_read(length):
    with pytest.raises(WireError, match=f"a head of {length:,} bytes"):
        decode(length.to_bytes(8, "little") + bytes(100))


def test_a_truncated_or_extended_message_is_noticed():
    _, data = small()
    for end in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:end])
    for more in (b"\0", b" ", data):
        with pytest.raises(WireError):
            decode(data + more)


@given(st.binary(max_size=64))
def test_anything_else_is_refused(data):
    with pytest.raises(WireError):
        decode(data)


ABOUT = f"{'-' * 16} work- 0000000001 +00000 +0000000001 -0000000001 000000000000060"
WHOLE = {"about": ABOUT, "groups": '["params"]'}
NESTED = "[" * 100_000


def test_a_header_with_its_fields_is_read():
    back, header = decode(encode_tensors({"params/w": torch.ones(1)}, WHOLE))
    assert bits(back) == bits({"params": {"w": torch.ones(1)}})
    assert header == Header(1, 1, 60)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        *({name: value for name, value in WHOLE.items() if name != missing} for missing in WHOLE),
        {**WHOLE, "about": ABOUT.replace("0000000001 ", "1 ", 1)},
        {**WHOLE, "about": ABOUT.replace("0000000001 ", "000000000x ", 1)},
        {**WHOLE, "about": ABOUT.replace("0000000001 ", "0000_00001 ", 1)},
        {**WHOLE, "about": ABOUT.replace("0000000001 ", "\u0660000000001 ", 1)},
        {**WHOLE, "about": ABOUT.replace("-0000000001", "")},
        {**WHOLE, "about": ABOUT + " 1"},
        {**WHOLE, "other": "1"},
        {**WHOLE, "groups": "params"},
        {**WHOLE, "groups": "5"},
        pytest.param({**WHOLE, "groups": NESTED}, id="nested groups"),
        {**WHOLE, "groups": '"params"'},
        {**WHOLE, "groups": '["other"]'},
    ],
    ids=str,
)
def test_a_header_without_its_fields_is_refused(fields):
    data = encode_tensors({"params/w": torch.ones(1)}, fields)
    assert decode_tensors(data)[1] == fields
    with pytest.raises(WireError, match="header"):
        decode(data)


def test_another_schema_is_refused():
    _, data = small()
    with pytest.raises(WireError, match="consilience/2"):
        decode(data.replace(b"consilience/1", b"consilience/2"))


@pytest.mark.parametrize("name", MESSAGES)
def test_the_bytes_are_not_a_pickle(name):
    data = encode(MESSAGES[name], Header(0, 0, 60))
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    numbers = sum(size for group, size in message_bytes(MESSAGES[name]).items() if group != "header")
    assert (
        len(data) == 8 + int.from_bytes(data[:8], "little") + numbers
    )  # JSON, then numbers, and nothing else
    metadata = json.loads(header["__metadata__"]["consilience"])
    assert set(metadata) == {"schema", "fields", "order", "sha256"}
    assert set(metadata["fields"]) == {"about", "groups"}
    with pytest.raises(Exception):  # noqa: B017, PT011
        list(pickletools.genops(data))


def test_equal_messages_are_equal_bytes():
    message = {"params": {"w": torch.ones(2)}, "buffers": {}}
    assert len({encode(message, Header(1, 2, 60)) for _ in range(10)}) == 1


def test_encoding_changes_nothing_and_needs_no_gradient():
    weight = torch.ones(2, requires_grad=True)
    back, _ = decode(encode({"params": {"w": weight}}, Header(0, 0, 60)))
    assert weight.requires_grad
    assert not back["params"]["w"].requires_grad


def test_deeply_nested_metadata_is_refused():
    nested = b'{"__metadata__":{"consilience":"' + NESTED.encode() + b'"}}'
    with pytest.raises(WireError):
        decode(len(nested).to_bytes(8, "little") + nested)


def test_a_group_called_header_is_not_counted():
    with pytest.raises(ValueError, match="'header'"):
        message_bytes({"header": {"w": torch.ones(3)}})

"""How much memory may be used: what people write, what is usual, and what running out of it says."""

from __future__ import annotations

import pytest
import torch

from consilience.config.config import read_config
from consilience.engine.memory import LEAST, bounded, read_size, shown, usual_memory
from consilience.errors import UserError

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GB", 8 * 10**9), ("1.5 GiB", 3 * 2**29), (" 500mb ", 5 * 10**8), (2 * 10**9, 2 * 10**9)],
)
def test_sizes_are_read(text, size):
    assert read_size(text) == size
    assert read_config({"memory": text}, "test").memory == f"{size}B"


@pytest.mark.parametrize(
    "text", ["", "much", "8 GB of it", "-8GB", "8PB", "1e400GB", "nan", "0", "1MB", [8], True]
)
def test_what_is_no_size_is_refused_by_name(text):
    with pytest.raises(UserError, match="memory"):
        read_config({"memory": text}, "test")


def test_a_written_size_is_read_again():
    config = read_config({"memory": "8GB"}, "test")
    assert read_config(config.written(), "test").memory == config.memory


def test_the_usual_is_what_a_processor_has():
    assert usual_memory(CPU) > LEAST


def test_out_of_memory_is_one_line_that_says_what_helps():
    with (
        pytest.raises(UserError, match=r"out of memory on cpu: .*2\.00 GiB asked for; set a smaller model"),
        bounded(CPU, 10**9),
    ):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has ...")


def test_other_errors_pass():
    with pytest.raises(ZeroDivisionError), bounded(CPU, None):
        raise ZeroDivisionError


def test_sizes_are_shown_in_gigabytes():
    assert shown(8 * 10**9) == "8 GB"

"""A stream cut anywhere gives the same lines."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remediator.kube.lines import LineSplitter, LineTooLongError


@given(
    lines=st.lists(st.binary(max_size=12).filter(lambda b: b"\n" not in b), max_size=12),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_lines_do_not_depend_on_where_the_chunks_end(lines: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    chunks = [stream[a:b] for a, b in pairwise(edges)]
    splitter = LineSplitter()

    found = [bytes(line) for chunk in chunks for line in splitter.feed(chunk)]

    assert found == [line for line in lines if line.strip()]


def test_unfinished_line_is_held_back() -> None:
    splitter = LineSplitter()

    assert list(splitter.feed(b"abc")) == []
    assert [bytes(line) for line in splitter.feed(b"def\nrest")] == [b"abcdef"]


def test_endless_line_is_an_error_not_endless_memory() -> None:
    splitter = LineSplitter(limit=10)
    for _ in range(2):
        list(splitter.feed(b"xxxxx"))

    with pytest.raises(LineTooLongError):
        list(splitter.feed(b"x"))

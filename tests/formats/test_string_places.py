"""Offsets of the strings of an array: by the low byte of each length, else by the full length."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.formats.mapped import short_string_offsets


def written(strings: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(s)) + s for s in strings)


@given(
    strings=st.lists(st.binary(max_size=255), max_size=30), before=st.binary(max_size=9), after=st.binary(max_size=9)
)
def test_short_strings(strings: list[bytes], before: bytes, after: bytes) -> None:
    places = short_string_offsets(before + written(strings) + after, len(before), len(strings))
    assert places is not None
    assert places[0] == len(before)
    assert [b - a - 8 for a, b in pairwise(places)] == [len(s) for s in strings]


@pytest.mark.parametrize("length", [256, 257, 300, 1 << 16])
def test_a_longer_one_is_left_to_who_reads_the_whole_length(length: int) -> None:
    for strings in ([b"a" * length], [b"ab", b"c" * length, b"d"]):
        assert short_string_offsets(written(strings), 0, len(strings)) is None


@pytest.mark.parametrize("cut", range(1, 12))
def test_strings_that_end_outside_are_left_too(cut: int) -> None:
    data = written([b"abc", b"def"])
    assert short_string_offsets(data[:-cut], 0, 2) is None
    assert short_string_offsets(b"\x05" + bytes(7), 0, 1) is None

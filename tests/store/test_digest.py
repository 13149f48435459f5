"""Digests of the store: lists of fields that differ in any way have different digests."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from camshaft.store.files import digest_of

# Lists that joined texts or plain concatenation would confuse.
DIFFERENT = [
    (),
    ("",),
    ("", ""),
    ("a", "b"),
    ("a|b",),
    ("a\nb",),
    ("ab", ""),
    ("", "ab"),
    (("a",), "b"),
    (("a", "b"),),
    ("a", ("b",)),
    (b"a", b"b"),
    (1, 2),
    (12,),
    ("1", "2"),
    (-12,),
    (None,),
    ("None",),
    ((),),
    ((), ()),
    (((),),),
    ("s1:a",),
    ("n",),
    ("i1;",),
    (")1;",),
    ("\ud83d\ude00",),
    ("\U0001f600",),
]


def test_lists_that_differ_have_different_digests() -> None:
    assert len({digest_of(*fields) for fields in DIFFERENT}) == len(DIFFERENT)


fields_of = st.lists(
    st.recursive(
        st.none() | st.integers() | st.text("ab|\n:;()1ns") | st.binary(max_size=3),
        lambda inner: st.lists(inner),
        max_leaves=5,
    )
)


@given(fields_of, fields_of)
def test_equal_digests_mean_equal_lists(one: list, other: list) -> None:
    assert (digest_of(*one) == digest_of(*other)) == (one == other)


def test_lists_and_tuples_of_equal_fields_are_equal() -> None:
    assert digest_of("a", ["b", 3]) == digest_of("a", ("b", 3)) == digest_of("a", (x for x in ("b", 3)))


@pytest.mark.parametrize("field", [1.5, object(), ("a", 2.5)])
def test_other_fields_are_refused(field: object) -> None:
    with pytest.raises(TypeError):
        digest_of(field)


def test_digests_are_keys() -> None:
    assert all(set(digest_of(x, y)) <= set("0123456789abcdef") for x, y in itertools.product("ab", repeat=2))

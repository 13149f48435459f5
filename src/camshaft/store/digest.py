"""digest_of: the SHA-256 of a list of fields, in an encoding that no other list shares."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeAlias

Field: TypeAlias = "str | bytes | int | Iterable[Field] | None"


def digest_of(*fields: Field) -> str:
    """The SHA-256 of the fields as 64 hex digits. Every key of the store is one, or a join of some.

    Each field is encoded as its kind, its length and its content, so names that come from files may contain any character.
    Fields are texts, bytes, integers, None, and nested lists or other iterables of these; others raise TypeError.
    """
    out = bytearray()
    _append(out, fields)
    return hashlib.sha256(out).hexdigest()


def _append(out: bytearray, fields: Iterable[Field]) -> None:
    n_fields = 0
    for field in fields:
        n_fields += 1
        match field:
            case str():
                data = field.encode("utf-8", "surrogatepass")
                out += b"s%d:" % len(data) + data
            case bytes():
                out += b"b%d:" % len(field) + field
            case int():
                out += b"i%d;" % field
            case None:
                out += b"n"
            case _:
                out += b"("
                _append(out, field)
    out += b")%d;" % n_fields

"""Random JSON schemas with bounded texts: objects, arrays, enums, formats, unions, references and recursion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

FORMATS = ("date", "time", "date-time", "ipv4", "ipv6", "uuid", "email")
_MOST_DEPTH = 2
_STRING = {"type": "string", "maxLength": 6}


def random_schema(rng: np.random.Generator) -> dict[str, Any]:
    """A schema of an object, with definitions that it refers to."""
    definitions = {
        "leaf": _node(rng, _MOST_DEPTH),
        # A list of at most four links: each level refers to the next one.
        **{f"link{i}": _link(i) for i in range(3)},
    }
    return _object(rng, 0) | {"$defs": definitions}


def _link(i: int) -> dict[str, Any]:
    following = {"anyOf": [{"type": "null"}, {"$ref": f"#/$defs/link{i + 1}"}]} if i < 2 else {"type": "null"}
    return _closed({"value": {"type": "integer", "minimum": 0, "maximum": 99}, "next": following})


def _closed(properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    names = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, "additionalProperties": False}


def _object(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    names = [f"p{i}" for i in range(rng.integers(1, 4))]
    required = [name for name in names if rng.random() < 0.7]
    return _closed({name: _node(rng, depth + 1) for name in names}, required)


def _array(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    low = int(rng.integers(0, 2))
    return {"type": "array", "items": _node(rng, depth + 1), "minItems": low, "maxItems": low + int(rng.integers(0, 3))}


def _integer(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    low = int(rng.integers(-1000, 1000))
    return {"type": "integer", "minimum": low, "maximum": low + int(rng.integers(0, 5000))}


def _number(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    return {"enum": [round(float(x), 3) for x in rng.normal(size=3)]}


def _string(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    low = int(rng.integers(0, 4))
    return {"type": "string", "minLength": low, "maxLength": low + int(rng.integers(0, 5))}


def _pattern(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    return {"type": "string", "pattern": str(rng.choice(["^[A-Z]{2}[0-9]{1,4}$", "^(x|yz){1,3}$", "^#[0-9a-f]{6}$"]))}


def _union(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    return {"anyOf": [_node(rng, depth + 1), {"type": "null"}, _closed({"kind": {"const": "other"}, "text": _STRING})]}


_LEAVES: tuple[Callable[[np.random.Generator, int], dict[str, Any]], ...] = (
    _integer,
    _number,
    _string,
    _pattern,
    lambda rng, depth: {"type": "boolean"},
    lambda rng, depth: {"type": ["null", "boolean"]},
    lambda rng, depth: {"enum": ["red", "green", 5, None, 'a "quoted" text', "\u00e9\u4e2d"]},
    lambda rng, depth: {"const": {"a": [1, 2]}},
    lambda rng, depth: {"type": "string", "format": str(rng.choice(FORMATS))},
)
_NODES = (
    _object,
    _array,
    _union,
    lambda rng, depth: {"$ref": "#/$defs/leaf"},
    lambda rng, depth: {"$ref": "#/$defs/link0"},
    *_LEAVES,
)


def _node(rng: np.random.Generator, depth: int) -> dict[str, Any]:
    makers = _LEAVES if depth >= _MOST_DEPTH else _NODES
    return makers[rng.integers(len(makers))](rng, depth)

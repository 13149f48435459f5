"""Call: how an op is called for a call in NumPy's terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Inputs = tuple[Any, ...]
Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class Call:
    """The op's own call, and what makes the result of it; `ready` is the result where nothing is computed."""

    inputs: Inputs = ()
    attrs: Attrs = field(default_factory=dict)
    finish: Callable[[Any], Any] | None = None
    ready: Any = None


Form = Callable[[str, Inputs, Attrs], "Call | None"]

"""Keys: checked access to the metadata under an architecture's prefix in a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value

MOST = 2**31 - 1  # of sizes and counts


class Keys:
    """Metadata under an architecture's prefix. Raises ModelError for a missing key or a value of the wrong kind."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata, self.architecture = metadata, architecture

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        name = f"{self.architecture}.{key}"
        value = self.metadata.get(name, default)
        if value is None:
            raise ModelError(f"the file has no key {name!r}, which {self.architecture} needs; convert the model again")
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if kind in (int, float) and not (number and math.isfinite(value)):
            raise ModelError(f"the key {name!r} is {shown_value(value)}; wanted a number")
        return kind(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, bool):
            raise ModelError(f"the key '{self.architecture}.{key}' is {shown_value(value)}; wanted true or false")
        return value

    def positive(self, key: str, default: float | None = None) -> float:
        """Return a number above 0."""
        value: float = self.get(key, float, default)
        if value <= 0:
            raise ModelError(f"the key '{self.architecture}.{key}' is {value:g}; wanted a number above 0")
        return value

    def at_least_0(self, key: str, default: float) -> float:
        """Return a number of 0 or more."""
        value: float = self.get(key, float, default)
        if value < 0:
            raise ModelError(f"the key '{self.architecture}.{key}' is {value:g}; wanted a number of 0 or more")
        return value

    def size(self, key: str, default: int | None = None, *, most: int = MOST) -> int:
        """Return an integer from 1 to `most`."""
        return self._whole(key, default, 1, most)

    def count(self, key: str, default: int = 0) -> int:
        """Return an integer from 0 to `MOST`."""
        return self._whole(key, default, 0, MOST)

    def _whole(self, key: str, default: int | None, least: int, most: int) -> int:
        value = self.get(key, float, default)
        if value != int(value) or not least <= value <= most:
            wanted = f"at most {most}" if value > most else f"an integer of {least} or more"
            raise ModelError(f"the key '{self.architecture}.{key}' is {value:.15g}; wanted {wanted}")
        return int(value)

    def require(self, key: str, wanted: int, why: str) -> None:
        """Raise ModelError unless a size is the one wanted, where the file has it."""
        found = self.size(key, wanted)
        if found != wanted:
            raise ModelError(f"the key '{self.architecture}.{key}' is {found}; wanted {wanted}, {why}")

    def by_layer(self, value: Any, n_layers: int) -> list[Any]:
        """Returns a list's first `n_layers` elements, or [] unless it has `n_layers` or `block_count` elements.

        `block_count` may include layers for multi-token prediction."""
        listed = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(listed, list | tuple) or len(listed) not in (
            n_layers,
            max(n_layers, self.size("block_count")),
        ):
            return []
        return list(listed[:n_layers])

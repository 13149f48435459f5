"""Streams: the several streams of a token in Gemma 3n, read from metadata."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from camshaft.dataclass import dataclass
from camshaft.errors import ModelError
from camshaft.formats.mapped import shown_value

if TYPE_CHECKING:
    from camshaft.models.file_keys import Keys

# More than any model has; a file that lies would unroll a graph for each.
MOST_STREAMS = 16


@dataclass(frozen=True)
class Streams:
    """`n` streams, of which layers compute number `active`. `cuts`: by how many standard deviations a layer's gates must exceed
    their mean, None: all count."""

    n: int
    active: int
    cuts: tuple[float | None, ...]


def read_streams(keys: Keys, n_layers: int) -> Streams:
    """The streams of a file. Raises ModelError, naming the key, for an impossible value."""
    n, active = keys.size("altup.num_inputs", 4), keys.count("altup.active_idx")
    if not 1 < n <= MOST_STREAMS:
        raise ModelError(f"the key '{keys.architecture}.altup.num_inputs' is {n}; wanted 2 to {MOST_STREAMS}")
    if active >= n:
        raise ModelError(f"the key '{keys.architecture}.altup.active_idx' is {active}; wanted less than {n}")
    name = f"{keys.architecture}.activation_sparsity_scale"
    value = keys.metadata.get(name)
    listed = [-math.inf] * n_layers if value is None else keys.by_layer(value, n_layers)
    if not listed or any(not isinstance(x, float) or math.isnan(x) or x == math.inf for x in listed):
        raise ModelError(
            f"the key {name!r} is {shown_value(value)}; wanted {n_layers} numbers, or -inf where all count"
        )
    return Streams(n, active, tuple(None if x == -math.inf else x for x in listed))

"""check_layers: refuse a file with fewer layers than its metadata says, or with a layer that lacks one tensor."""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import xor

from camshaft.errors import ModelError

# What a layer may lack beside others: keys are the values too in some layers of Gemma 4, and ModernBERT's first layer begins
# with what the norm of embeddings gives.
_MAY_LACK = {"gemma4": "attn_v.weight", "modern-bert": "attn_norm.weight"}
# Scales of formats are those of single matrices: one layer may have a matrix in another format.
_ENDS = (".weight", ".bias")


def check_layers(architecture: str, n_layers: int, names: Collection[str], start: str = "blk") -> None:
    """Raise ModelError if the file has fewer tensors than layers (a graph of that many layers takes long to fail), or if a layer
    lacks one tensor of another layer and has all its others. Nothing else notices that an optional tensor, such as a bias, is
    missing in one layer."""
    if n_layers > len(names):
        raise ModelError(f"the key '{architecture}.block_count' is {n_layers}; the file has {len(names)} tensors")
    layers = _parts_of_layers(n_layers, names, start)
    # Layers by the xor of their names' hashes: removing a name from it takes one step, however many tensors a layer has.
    sums = {reduce(xor, map(hash, parts), 0): layer for layer, parts in layers.items()}
    for total, layer in sums.items():
        for part in layers[layer]:
            other = sums.get(total ^ hash(part))
            if other is not None and part not in layers[other] and _MAY_LACK.get(architecture) != part:
                raise ModelError(
                    f"the file has no tensor '{start}.{other}.{part}', but layer {layer} has one and is equal otherwise; "
                    "convert the model again"
                )


def _parts_of_layers(n_layers: int, names: Collection[str], start: str) -> dict[int, set[str]]:
    """The names of each layer's tensors, behind the layer's number."""
    numbers, found = {str(n) for n in range(n_layers)}, dict[int, set[str]]()
    for name in names:
        if name.startswith(f"{start}.") and name.endswith(_ENDS):
            number, _, part = name[len(start) + 1 :].partition(".")
            if number in numbers:
                found.setdefault(int(number), set()).add(part)
    return found

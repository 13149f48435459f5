"""How far logits are from the float64 reference, and the default model in every format: whole, or cut to its first layers.

The cut one is for ordinary runs: it has the vocabulary and shapes of the whole, and takes a tenth of the time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from camshaft.formats.gguf import GGUFTensor, open_gguf
from camshaft.formats.gguf_write import NewTensor, unsigned, values_of, write_gguf
from camshaft.models.quantize import quantize
from tests.support import float64_llama as reference
from tests.support.fixtures import DATA, Dequantized

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q2_K", "Q3_K_M", "IQ4_NL", "F16", "BF16")
LAYERS = 4
N_TOKENS = 256
FROZEN = DATA / "format_divergence.json"


@dataclass(frozen=True)
class Divergence:
    """Of logits [n, vocab] from the truth: mean KL of the next token, and the greatest logit difference of a position, in the
    mean over positions and at its most. The most of all is one outlier's, which side has it is chance."""

    kl: float
    difference: float
    most: float

    @classmethod
    def of(cls, truth: ArrayLike, logits: ArrayLike) -> Divergence:
        greatest = np.abs(np.asarray(truth, np.float64) - np.asarray(logits, np.float64)).max(axis=1)
        kl = reference.kl_divergence(truth, logits).mean()
        return cls(float(kl), float(greatest.mean()), float(greatest.max()))


def truth(path: Path, ids: Sequence[int]) -> reference.Floats:
    """The float64 logits of the very weights that lie in the file."""
    with open_gguf(path) as file:
        return reference.logits(Dequantized(file), file.metadata, ids)


def cut(source: Path, out: Path, layers: int = LAYERS) -> Path:
    """The model's first layers as a file of its own, bytes as they were."""

    def data(tensor: GGUFTensor) -> list[np.ndarray]:
        return [tensor.data()]

    with open_gguf(source) as file:
        keys = values_of(file.metadata) | {f"{file.metadata['general.architecture']}.block_count": unsigned(layers)}
        kept = [
            t for name, t in file.tensors.items() if not name.startswith("blk.") or int(name.split(".")[1]) < layers
        ]
        write_gguf(out, keys, [NewTensor(t.name, t.shape, t.format, partial(data, t)) for t in kept])
    return out


def in_format(source: Path, name: str, folder: Path) -> Path:
    """The model by `camshaft quantize`; as it is where it has that format already."""
    if name == "Q4_1":
        return source
    out = folder / f"{source.stem}.{name}.gguf"
    if not out.exists():
        quantize(source, out, name)
    return out


def frozen(part: str) -> dict[str, Divergence]:
    """llama.cpp's own, by format; `part` is 'cut' or 'whole'."""
    rows = json.loads(FROZEN.read_text("utf-8"))[part]
    return {name: Divergence(**row) for name, row in rows.items()}

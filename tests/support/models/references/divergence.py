"""How far logits are from the float64 reference, and the default model in every format: whole, or cut to its first layers.

The cut one is for ordinary runs: it has the vocabulary and shapes of the whole, and takes a tenth of the time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from camshaft.formats.gguf.file import GGUFTensor, open_gguf
from camshaft.formats.gguf.write import NewTensor, unsigned, values_of, write_gguf
from camshaft.models.files.quantize import quantize
from tests.support.fixtures import DATA, Dequantized
from tests.support.models.references import float64_llama as reference

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q2_K", "Q3_K_M", "IQ4_NL", "F16", "BF16")
LAYERS = 4
TEXTS = DATA / "format_texts.npz"
N_TEXTS = {"cut": 6, "whole": 1}
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
        rows = zip(np.asarray(truth, np.float64), np.asarray(logits), strict=True)
        greatest = np.asarray([np.abs(row - other.astype(np.float64)).max() for row, other in rows])
        kl = reference.kl_divergence(truth, logits).mean()
        return cls(float(kl), float(greatest.mean()), float(greatest.max()))

    @classmethod
    def of_all(cls, parts: Sequence[Divergence]) -> Divergence:
        """Of texts of equal length together."""
        return cls(
            float(np.mean([p.kl for p in parts])),
            float(np.mean([p.difference for p in parts])),
            max(p.most for p in parts),
        )


def texts(part: str) -> list[list[int]]:
    """Texts of 256 tokens: two of the excerpt, four of a page of prose and tables; `part` is 'cut' or 'whole'.

    Another order of sums rounds other activations to other codes: the mean KL of one text then moves by up to 11 %, up or down
    (two orders, seven formats), that of all six by 0.1 to 2.6 %. A bound of a tenth needs several texts.
    """
    return [list(map(int, row)) for row in np.load(TEXTS)["tokens"][: N_TEXTS[part]]]


def diverge(path: Path, part: str, logits: Callable[[list[int]], ArrayLike], n_texts: int | None = None) -> Divergence:
    """How far `logits` of the texts, or of the first `n_texts`, are from the float64 logits of the file's own weights."""
    with open_gguf(path) as file:
        # in float64 once: the reference would convert them for each text
        weights = {name: weight.astype(np.float64) for name, weight in Dequantized(file).items()}
        return Divergence.of_all(
            [Divergence.of(reference.logits(weights, file.metadata, ids), logits(ids)) for ids in texts(part)[:n_texts]]
        )


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

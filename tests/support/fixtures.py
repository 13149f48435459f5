"""The frozen fixtures of tests/data, read back: what heavy oracles said, without the oracles."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import lzma
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from camshaft.formats.gguf.file import GGUFFile
from camshaft.settings import settings

LOGIT_UNIT = 2.0**-16
DATA = Path(__file__).parents[1] / "data"
TINY_MODELS = tuple(sorted(p.name.removesuffix(".gguf.xz") for p in (DATA / "models").glob("*.gguf.xz")))
DEFAULT_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Where `camshaft pull` puts models: tests have a cache of their own (conftest.py), or the one that CAMSHAFT_CACHE_DIR names.
_CACHES = settings().cache_dir, user_cache_path("camshaft", appauthor=False)


def tiny_encoder(name: str, folder: Path) -> Path:
    """The tiny random encoder of that name, unpacked into a folder."""
    path = folder / f"{name}.gguf"
    path.write_bytes(gzip.decompress((DATA / "encoders" / f"{name}.gguf.gz").read_bytes()))
    return path


def tiny_model(name: str, folder: Path) -> Path:
    """The tiny model `name` unpacked into `folder`: an F32 GGUF file."""
    path = folder / f"{name}.gguf"
    path.write_bytes(_unpacked(name))
    return path


def packed_model(name: str) -> bytes:
    """The tiny model `name` as it is checked in."""
    return (DATA / "models" / f"{name}.gguf.xz").read_bytes()


@functools.cache
def _unpacked(name: str) -> bytes:
    return lzma.decompress(packed_model(name))


def tiny_logits(name: str) -> tuple[list[int], NDArray[np.float32]]:
    """The tokens given to the tiny model `name` and the logits that transformers gave: (n ids, float32 [n, vocab])."""
    with np.load(DATA / "models" / f"{name}.npz") as saved:
        return saved["tokens"].tolist(), unpack_logits(saved["planes"], len(saved["tokens"]))


def pack_logits(logits: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Logits as compressed planes of the bytes of 24-bit integers, in units of 2^-16. ValueError for those of 128 or more."""
    whole = np.round(logits.astype(np.float64) / LOGIT_UNIT).astype(np.int64) + (1 << 23)
    if whole.min() < 0 or whole.max() >= 1 << 24:
        raise ValueError(f"logits up to {np.abs(logits).max()}; wanted less than 128")
    planes = np.stack([whole >> shift & 255 for shift in (0, 8, 16)]).astype(np.uint8)
    return np.frombuffer(lzma.compress(planes.tobytes(), preset=9), np.uint8)


def unpack_logits(packed: NDArray[np.uint8], n_tokens: int) -> NDArray[np.float32]:
    """The reverse of `pack_logits`: float32 [n_tokens, vocab], each within 2^-17."""
    planes = np.frombuffer(lzma.decompress(packed.tobytes()), np.uint8).reshape(3, n_tokens, -1).astype(np.int64)
    whole = planes[0] + (planes[1] << 8) + (planes[2] << 16) - (1 << 23)
    return (whole * LOGIT_UNIT).astype(np.float32)


def excerpt() -> str:
    """The English text on which language models are compared."""
    return (DATA / "excerpt.txt").read_text(encoding="utf-8")


def llama_cpp_top() -> dict[str, NDArray[np.generic]]:
    """What llama.cpp said of the default model on the excerpt.

    tokens [256] int32; ids [256, 64] uint16 and log_probabilities [256, 64] float32, the likeliest first.
    """
    with np.load(DATA / "llama_cpp_top64.npz") as saved:
        return dict(saved)


def awkward_strings() -> list[bytes]:
    """The strings that tokenizers are compared on."""
    return _unpack(DATA / "tokens" / "strings.npz")["strings"]


def frozen_tokens(name: str) -> dict[tuple[bool, bool], list[list[int]]]:
    """llama.cpp's tokens of each awkward string in vocabulary `name`, by (add_special, parse_special)."""
    with np.load(DATA / "tokens" / f"{name}.npz") as saved:
        return {
            (bool(a), bool(p)): [part.tolist() for part in np.split(saved[f"ids{a}{p}"], saved[f"ends{a}{p}"][:-1])]
            for a in (0, 1)
            for p in (0, 1)
        }


MODES = [(add, parse) for add in (False, True) for parse in (False, True)]


def token_digest(tokens: Mapping[tuple[bool, bool], list[list[int]]], end_ids: Iterable[int]) -> str:
    """A digest of what `frozen_tokens` and `frozen_end_ids` say of a vocabulary."""
    said = repr([tokens[mode] for mode in MODES]) + repr(sorted(end_ids))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def frozen_digests() -> dict[str, str]:
    """Digests of llama.cpp's tokens in further vocabularies of its own, by name."""
    found: dict[str, str] = json.loads((DATA / "tokens" / "digests.json").read_text())
    return found


def frozen_end_ids(name: str) -> list[int]:
    """The tokens at which llama.cpp stops generating, in vocabulary `name`."""
    with np.load(DATA / "tokens" / f"{name}.npz") as saved:
        return saved["end_ids"].tolist()


def _unpack(path: Path) -> dict[str, list[bytes]]:
    with np.load(path) as saved:
        joined, ends = saved["bytes"].tobytes(), saved["ends"].tolist()
    return {"strings": [joined[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)]}


def default_model() -> Path | None:
    """The default model's file: CAMSHAFT_TEST_MODEL, else where `camshaft pull` puts it; None if it is not there."""
    given = os.environ.get("CAMSHAFT_TEST_MODEL")
    found = (folder / "models" / DEFAULT_MODEL for folder in _CACHES)
    return Path(given) if given else next((path for path in found if path.is_file()), None)


def vocabulary_file(name: str) -> Path | None:
    """llama.cpp's vocabulary-only GGUF file, if scripts/freeze_oracles.py has fetched it."""
    found = (folder / "oracles" / f"ggml-vocab-{name}.gguf" for folder in _CACHES)
    return next((path for path in found if path.is_file()), None)


class Dequantized(Mapping[str, NDArray[np.float32]]):
    """The tensors of an open GGUF file as float32 arrays, dequantized when asked for and not kept."""

    def __init__(self, file: GGUFFile) -> None:
        self._tensors = file.tensors

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self._tensors[name].dequantize()

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

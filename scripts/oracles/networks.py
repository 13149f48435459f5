"""Freezes tiny random networks and what transformers says of them, which llama.cpp must confirm."""

from __future__ import annotations

import gzip
import lzma
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from scripts.oracles import llama
from tests.support.fixtures import DATA, pack_logits

# Bytes of numbers are alike at the same place in them: a fifth less than gzip.
NUMBERS_OF_4_BYTES = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 2, "pb": 2}]


def freeze_models(model: Path) -> None:
    """Tiny random models and the logits of transformers, which llama.cpp must confirm before they are written."""
    from scripts.oracles import tiny_models

    for name in tiny_models.SEEDED:
        freeze_model(name)


def freeze_model(name: str) -> None:
    """One tiny random model and its logits."""
    from scripts.oracles import tiny_models

    seed, tiny = tiny_models.SEEDED[name]
    network, tokens = tiny_models.build(tiny, seed), tiny_models.sequence(seed, tiny.n_tokens, tiny.n_vocab)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        tiny_models.write_gguf(tiny, network, path)
        wanted = tiny_models.logits(network, tokens)
        difference = 0.0 if tiny.agreement is None else np.abs(llama.logits(path, tokens, exact=True) - wanted).max()
        packed = lzma.compress(path.read_bytes(), filters=NUMBERS_OF_4_BYTES)
    if difference > (tiny.agreement or 0) or wanted.std(axis=0).mean() < 1:
        raise SystemExit(f"{tiny.name}: llama.cpp differs by {difference}, std {wanted.std(axis=0).mean():.2f}")
    (DATA / "models").mkdir(parents=True, exist_ok=True)
    (DATA / "models" / f"{tiny.name}.gguf.xz").write_bytes(packed)
    np.savez(DATA / "models" / f"{tiny.name}.npz", tokens=np.array(tokens, np.uint16), planes=pack_logits(wanted))


def freeze_encoders(model: Path) -> None:
    """Tiny random encoders and the vectors of transformers, which llama.cpp must confirm before they are written."""
    from scripts.oracles.encoders import tiny as tiny_encoders

    for seed, tiny in enumerate(tiny_encoders.ENCODERS):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tiny.gguf"
            arrays, difference = tiny_encoders.written(tiny, seed, path)
            packed = gzip.compress(path.read_bytes(), 9, mtime=0)
        print(f"{tiny.name}: llama.cpp differs by {difference:.2g}")
        if difference > tiny.agreement:
            raise SystemExit(f"{tiny.name}: wanted at most {tiny.agreement}")
        target = DATA / "encoders" / f"{tiny.name}.gguf.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(packed)
        save(DATA / "encoders" / f"{tiny.name}.npz", **arrays)


def freeze_vision(model: Path, names: Sequence[str] = ()) -> None:
    """Tiny random models that see images (those of these names, or all), and the logits of transformers."""
    from scripts.oracles.tiny.images import files, models, vision

    for seed, tiny in enumerate(models.MODELS, models.FIRST_SEED):
        if names and tiny.name not in names:
            continue
        network = vision.build(tiny, seed)
        for part, write in (("text", files.write_text), ("mmproj", files.write_vision)):
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "tiny.gguf"
                write(tiny, network, path)
                packed = lzma.compress(path.read_bytes(), filters=NUMBERS_OF_4_BYTES)
            target = DATA / "vision" / f"{tiny.name}.{part}.gguf.xz"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(packed)
        arrays = vision.answers(tiny, network)
        spread = min(values.std(axis=0).mean() for name, values in arrays.items() if "logits" in name)
        if spread < 1:
            raise SystemExit(f"{tiny.name}: the logits' standard deviation is {spread:.2f}; wanted 1")
        save(DATA / "vision" / f"{tiny.name}.npz", **arrays)


def freeze_sequences(model: Path) -> None:
    """Tiny random models with an encoder and a decoder, Whisper and T5s of both versions, and what transformers says of them."""
    from scripts.oracles.tiny import speech, t5

    _freeze("speech/whisper", speech, speech.make())
    for name, gated in (("t5-gated", True), ("t5-relu", False)):
        _freeze(f"t5/{name}", t5, t5.make(gated=gated))


def _freeze(name: str, oracle: Any, network: Any) -> None:
    """A network's file, and what its oracle says of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.gguf"
        oracle.write(network, path)
        packed = lzma.compress(path.read_bytes(), filters=NUMBERS_OF_4_BYTES)
    arrays = oracle.facts(network)
    if arrays["logits"].std(axis=0).mean() < 1:
        raise SystemExit(f"{name}: std {arrays['logits'].std(axis=0).mean():.2f}")
    (DATA / name).parent.mkdir(parents=True, exist_ok=True)
    (DATA / f"{name}.gguf.xz").write_bytes(packed)
    save(DATA / f"{name}.npz", **arrays)


def save(path: Path, **arrays: np.ndarray) -> None:
    """Writes arrays, and their folder where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)

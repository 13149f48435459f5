"""Regenerates tests/data from the oracles: torch, transformers, gguf and llama.cpp. Needs the extras oracles and bench.

    python scripts/freeze_oracles.py [--model FILE] [STAGE ...]

Stages: tokens models encoders vision sequences logits quantized weighted divergence; all by default.

llama.cpp's vocabulary-only files come from the source archive of llama-cpp-python (pip, once, into the cache folder).
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from camshaft.formats.blocks import BLOCK_FORMATS  # noqa: E402
from camshaft.formats.importance import WEIGHTED  # noqa: E402
from camshaft.models.files.quantization_mix import MIXES  # noqa: E402
from scripts.oracles import excerpt, llama, quantized  # noqa: E402
from scripts.oracles.awkward import awkward_strings  # noqa: E402
from scripts.oracles.networks import freeze_encoders, freeze_models, freeze_sequences, freeze_vision, save  # noqa: E402
from scripts.oracles.vocabularies import OTHERS, VOCABULARIES, fetch_vocabularies  # noqa: E402
from tests.support.fixtures import DATA, MODES, default_model, token_digest  # noqa: E402
from tests.support.models import vocabularies  # noqa: E402
from tests.support.models.references import divergence  # noqa: E402
from tests.support.models.sketches import SKETCHES, block_values, sketch, weighted_values  # noqa: E402

MAX_NBYTES = 6_000_000
N_POSITIONS = 256
N_TOP = 64


def freeze_tokens(model: Path) -> None:
    """Tokens of the awkward strings, in all four modes, and the tokens that end generation."""
    strings = awkward_strings()
    folder = DATA / "tokens"
    joined = np.frombuffer(b"".join(strings), np.uint8)
    save(folder / "strings.npz", bytes=joined, ends=np.cumsum([len(s) for s in strings], dtype=np.int32))
    with tempfile.TemporaryDirectory() as scratch:
        made = {name: getattr(vocabularies, name)() for name in ("unigram", "rwkv", "plamo2")}
        for name, metadata in made.items():
            vocabularies.write_gguf(metadata, Path(scratch) / f"{name}.gguf")
        of_tests = {name: Path(scratch) / f"{name}.gguf" for name in made}
        files = {"smollm2": model, **of_tests, **fetch_vocabularies(VOCABULARIES)}
        for name, path in files.items():
            save(folder / f"{name}.npz", **_tokens_of(llama.Vocabulary(path), strings))
    digests = {name: _digest(llama.Vocabulary(path), strings) for name, path in fetch_vocabularies(OTHERS).items()}
    (folder / "digests.json").write_text(json.dumps(digests, indent=1) + "\n")


def _digest(vocabulary: llama.Vocabulary, strings: Sequence[bytes]) -> str:
    tokens = {
        (add, parse): [vocabulary.tokenize(s, add_special=add, parse_special=parse) for s in strings]
        for add, parse in MODES
    }
    return token_digest(tokens, vocabulary.end_ids())


def _tokens_of(vocabulary: llama.Vocabulary, strings: Sequence[bytes]) -> dict[str, np.ndarray]:
    arrays = {"end_ids": np.array(vocabulary.end_ids(), np.int32)}
    for a, p in ((0, 0), (0, 1), (1, 0), (1, 1)):
        ids = [vocabulary.tokenize(s, add_special=bool(a), parse_special=bool(p)) for s in strings]
        arrays[f"ids{a}{p}"] = np.concatenate([np.array(i, np.int32) for i in ids])
        arrays[f"ends{a}{p}"] = np.cumsum([len(i) for i in ids], dtype=np.int32)
    return arrays


def freeze_logits(model: Path) -> None:
    """llama.cpp's likeliest tokens after each of the excerpt's first positions, with its own settings."""
    if not (DATA / "excerpt.txt").exists():
        (DATA / "excerpt.txt").write_text(excerpt.english_text(), encoding="utf-8")
    text = (DATA / "excerpt.txt").read_bytes()
    tokens = llama.Vocabulary(model).tokenize(text, add_special=True, parse_special=False)[:N_POSITIONS]
    if len(tokens) < N_POSITIONS:
        raise SystemExit(f"the excerpt has {len(tokens)} tokens; wanted {N_POSITIONS}")
    logits = llama.logits(model, tokens, exact=False).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ids = np.argsort(-log_probabilities, axis=1, kind="stable")[:, :N_TOP]
    top = np.take_along_axis(log_probabilities, ids, axis=1).astype(np.float32)
    save(
        DATA / "llama_cpp_top64.npz",
        tokens=np.array(tokens, np.int32),
        ids=ids.astype(np.uint16),
        log_probabilities=top,
    )


def freeze_quantized(model: Path) -> None:
    """Blocks that llama.cpp makes of values, and the types that it gives the tensors of the sketches, by file type."""
    rows = [row for row in BLOCK_FORMATS.values() if row.encode and not row.is_plain]
    made = {
        row.name: quantized.blocks(block_values(row.block_size), row.ggml_id or 0, row.block_nbytes) for row in rows
    }
    save(DATA / "quantized" / "blocks.npz", **made)
    types: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in SKETCHES:
            source, target = sketch(name, Path(folder)), Path(folder) / "out.gguf"
            for mix, row in MIXES.items():
                quantized.requantize(source, target, row.file_type)
                types.setdefault(name, {})[mix] = quantized.types_of(target)
    packed = gzip.compress(json.dumps(types, indent=0).encode(), 9, mtime=0)
    (DATA / "quantized" / "types.json.gz").write_bytes(packed)


def freeze_weighted(model: Path) -> None:
    """Rows that llama.cpp makes of values with an importance of each column."""
    values, importance = weighted_values()
    rows = [BLOCK_FORMATS[name] for name in WEIGHTED]
    made = {
        row.name: quantized.weighted_rows(values, importance, row.ggml_id or 0, row.row_nbytes(values.shape[1]))
        for row in rows
    }
    save(DATA / "quantized" / "weighted.npz", **made)


def freeze_divergence(model: Path) -> None:
    """How far llama.cpp is from the float64 reference, by format of the default model, whole and cut to its first layers.

    The texts are tokens of the default model, frozen once: the excerpt, then the beginning of docs/performance.md of that day.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        short = divergence.cut(model, Path(folder) / "cut.gguf")
        for part, source in (("cut", short), ("whole", model)):
            for name in divergence.FORMATS:
                path = divergence.in_format(source, name, Path(folder))
                row = asdict(divergence.diverge(path, part, partial(llama.logits, path, exact=False)))
                found.setdefault(part, {})[name] = {key: float(f"{value:.4g}") for key, value in row.items()}
                print(part, name, found[part][name], flush=True)
    divergence.FROZEN.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


STAGES: dict[str, Callable[[Path], None]] = {
    "tokens": freeze_tokens,
    "models": freeze_models,
    "encoders": freeze_encoders,
    "vision": freeze_vision,
    "sequences": freeze_sequences,
    "logits": freeze_logits,
    "quantized": freeze_quantized,
    "weighted": freeze_weighted,
    "divergence": freeze_divergence,
}


def main() -> None:
    """Runs the wanted stages and prints the size of tests/data."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, default=default_model(), help="the default model's file (else the pulled one)"
    )
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], default=[])
    arguments = parser.parse_args()
    if arguments.model is None:
        raise SystemExit("no default model: run `camshaft pull`, or give --model FILE")
    for name in arguments.stages or STAGES:
        STAGES[name](arguments.model)
        print(f"{name}: frozen")
    nbytes = sum(p.stat().st_size for p in DATA.rglob("*") if p.is_file())
    print(f"{DATA}: {nbytes} bytes")
    if nbytes > MAX_NBYTES:
        raise SystemExit(f"more than {MAX_NBYTES} bytes")


if __name__ == "__main__":
    main()

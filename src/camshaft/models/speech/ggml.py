"""whisper.cpp's files (ggml-base.bin): sizes, filters, tokens and tensors, copied block for block into a GGUF file.

All sizes are little-endian i32 and are checked against the file's length."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError
from camshaft.formats.bits import Bytes
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.formats.gguf.write import NewTensor, encoded_value, write_gguf
from camshaft.formats.mapped import MappedFile, shown
from camshaft.models.speech.config import N_FFT, SAMPLE_RATE
from camshaft.models.speech.ggml_vocabulary import N_ENGLISH, tokenizer_keys
from camshaft.ops.fft.audio import mel_filters

MAGIC = 0x67676D6C.to_bytes(4, "little")
_SIZES = (
    *("n_vocab", "audio_context", "dim", "heads", "layers"),
    *("text_context", "text_dim", "text_heads", "text_layers", "n_mels", "file_type"),
)
_MOST_TOKEN_NBYTES, _MOST_DIMS, _MOST_TENSORS = 1024, 4, 1 << 16
_FORMATS = {row.ggml_id: row for row in BLOCK_FORMATS.values() if row.ggml_id is not None}
_LAYER = {
    **{
        f"attn.{theirs}": f"attn_{ours}"
        for theirs, ours in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "output"))
    },
    "attn_ln": "attn_norm",
    "mlp_ln": "ffn_norm",
    "mlp.0": "ffn_up",
    "mlp.2": "ffn_down",
}
_LAYER |= {f"cross_{theirs}": f"cross_{ours}" for theirs, ours in _LAYER.items() if theirs.startswith("attn")}
_TOP = {
    "encoder.positional_embedding": "enc.position_embd.weight",
    "decoder.positional_embedding": "dec.position_embd.weight",
    "decoder.token_embedding.weight": "token_embd.weight",
    **{f"encoder.{n}.{end}": f"enc.{n}.{end}" for n in ("conv1", "conv2") for end in ("weight", "bias")},
    **{f"encoder.ln_post.{end}": f"enc.output_norm.{end}" for end in ("weight", "bias")},
    **{f"decoder.ln.{end}": f"dec.output_norm.{end}" for end in ("weight", "bias")},
}
_IN_LAYER = re.compile(r"(enc|dec)oder\.blocks\.([0-9]{1,4})\.([a-z_0-9.]+)\.(weight|bias)")


def is_ggml(path: Path) -> bool:
    """Whether a file begins like whisper.cpp's."""
    with path.open("rb") as file:
        return file.read(4) == MAGIC


@dataclass
class _Cursor:
    """The reader's position in the file."""

    file: MappedFile
    at: int = 4

    def view(self, nbytes: int, what: str) -> Bytes:
        """The next bytes. Raises FormatError if the file has fewer."""
        if not 0 <= nbytes <= self.file.size - self.at:
            raise FormatError(f"{self.file.path}: ends within {what}: it is cut off, or no file of whisper.cpp")
        self.at += nbytes
        return self.file.view(self.at - nbytes, nbytes)

    def integers(self, n: int, what: str) -> list[int]:
        found: list[int] = np.frombuffer(self.view(4 * n, what).tobytes(), "<i4").tolist()
        return found


def convert_ggml(source: Path, target: Path) -> tuple[str, dict[str, int]]:
    """Convert a file of whisper.cpp to GGUF; returns its architecture and the number of tensors by format.

    Raises FormatError for a damaged file, other mel filters, or a tensor that Whisper does not have."""
    file = MappedFile(source)
    try:
        cursor = _Cursor(file)
        sizes = dict(zip(_SIZES, cursor.integers(len(_SIZES), "its sizes"), strict=True))
        if min(sizes[name] for name in _SIZES[:-1]) < 1 or sizes["dim"] != sizes["text_dim"]:
            raise FormatError(f"{file.path}: has the sizes {list(sizes.values())}; wanted those of a Whisper")
        _check_filters(cursor, sizes["n_mels"])
        tokens, tensors = _tokens(cursor, sizes["n_vocab"]), list(_tensors(cursor))
        keys = tokenizer_keys(tokens, sizes["n_vocab"], file.path)
        values = {**_keys(sizes, source.stem), **keys}
        write_gguf(target, {key: encoded_value(value) for key, value in values.items()}, tensors)
    finally:
        file.close()
    names = [tensor.format.name for tensor in tensors]
    return "whisper", {name: names.count(name) for name in sorted({*names})}


def _keys(sizes: dict[str, int], name: str) -> dict[str, Any]:
    keys = {
        "context_length": sizes["text_context"],
        "embedding_length": sizes["dim"],
        "feed_forward_length": 4 * sizes["dim"],
        "block_count": sizes["layers"],
        "decoder_block_count": sizes["text_layers"],
        "vocab_size": sizes["n_vocab"],
        "attention.head_count": sizes["heads"],
        "attention.layer_norm_epsilon": 1e-5,
        "audio.context_length": sizes["audio_context"],
        "audio.mel_count": sizes["n_mels"],
        "multilingual": sizes["n_vocab"] > N_ENGLISH,
    }
    general = {"general.architecture": "whisper", "general.type": "model", "general.name": name}
    return {**general, **{f"whisper.{key}": value for key, value in keys.items()}}


def _check_filters(cursor: _Cursor, n_mels: int) -> None:
    """Raises FormatError unless the file's mel filters are those that camshaft computes."""
    rows, columns = cursor.integers(2, "its filters")
    n_freqs = N_FFT // 2 + 1
    if (rows, columns) != (n_mels, n_freqs) or n_mels > n_freqs:
        raise FormatError(f"{cursor.file.path}: has {rows} mel filters of {columns}; wanted {n_mels} of {n_freqs}")
    given = cursor.view(4 * rows * columns, "its filters").view("<f4").reshape(rows, columns)
    wanted = mel_filters(n_freqs, n_mels, SAMPLE_RATE, norm="slaney", mel="slaney")
    if not np.abs(given - wanted).max() < 1e-4:
        raise FormatError(f"{cursor.file.path}: has other mel filters than Whisper's")


def _tokens(cursor: _Cursor, n_vocab: int) -> list[bytes]:
    (n,) = cursor.integers(1, "its tokens")
    if not 0 < n <= n_vocab:
        raise FormatError(f"{cursor.file.path}: has {n} tokens of {n_vocab}")
    tokens = []
    for _ in range(n):
        (nbytes,) = cursor.integers(1, "its tokens")
        if not 0 <= nbytes <= _MOST_TOKEN_NBYTES:
            raise FormatError(f"{cursor.file.path}: has a token of {nbytes} bytes")
        tokens.append(cursor.view(nbytes, "its tokens").tobytes())
    return tokens


def _tensors(cursor: _Cursor) -> Iterator[NewTensor]:
    seen: set[str] = set()
    while cursor.at < cursor.file.size:
        n_dims, n_name, kind = cursor.integers(3, "a tensor")
        form = _FORMATS.get(kind)
        if not 1 <= n_dims <= _MOST_DIMS or not 1 <= n_name <= _MOST_TOKEN_NBYTES or form is None:
            raise FormatError(
                f"{cursor.file.path}: has a tensor of {n_dims} axes and type {kind}, which no Whisper has"
            )
        shape = tuple(reversed(cursor.integers(n_dims, "a tensor")))
        name = cursor.view(n_name, "a tensor").tobytes().decode("utf-8", "replace")
        new = _new_name(name)
        if new is None or new in seen or len(seen) == _MOST_TENSORS:
            raise FormatError(f"{cursor.file.path}: has the tensor {shown(name)}, which no Whisper has, or twice")
        seen.add(new)
        yield _tensor(cursor, new, shape, form)


def _tensor(cursor: _Cursor, name: str, shape: tuple[int, ...], form: BlockFormat) -> NewTensor:
    if min(shape) < 1 or shape[-1] % form.block_size:
        raise FormatError(f"{cursor.file.path}: {name} has shape {list(shape)} in {form.name}")
    if name.endswith(".bias"):  # those of convolutions have an axis of 1 too
        shape = (int(np.prod(shape, dtype=object)),)
    made = NewTensor(name, shape, form, tuple)
    data = cursor.view(made.nbytes, name)
    return replace(made, parts=lambda: [data])


def _new_name(name: str) -> str | None:
    if name in _TOP:
        return _TOP[name]
    found = _IN_LAYER.fullmatch(name)
    ours = _LAYER.get(found[3]) if found else None
    return f"{found[1]}.blk.{found[2]}.{ours}.{found[4]}" if found and ours else None

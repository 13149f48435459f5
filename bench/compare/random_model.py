"""Generate a model file of a known shape with random weights, for benchmarks without the real file.

The vocabulary is that of an existing model, padded with unused tokens. llama.cpp can open the file too.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.gguf.write import NewTensor, Raw, unsigned, values_of, write_gguf
from camshaft.models.files.quantization_mix import TensorPosition, format_for, is_quantized, mix_named, part_of
from camshaft.models.files.quantize import QuantizationResult, quantize

FLOAT32, STRING, ARRAY, INT32, UNUSED = 6, 8, 9, 5, 5


@dataclass(frozen=True)
class Shape:
    """Dimensions of a decoder; `biases` on q, k and v, as in Qwen2. With experts, of which a token uses some, `ffn` is that of
    one of them, and q and k are normed, as in Qwen3."""

    architecture: str
    layers: int
    dim: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    context: int
    rope_base: float
    biases: bool = False
    experts: int = 0
    experts_used: int = 0


SHAPES = {
    # Qwen2-0.5B (Yang et al., 2024): 494 million weights, tied embeddings
    "qwen2-0.5b": Shape("qwen2", 24, 896, 4864, 14, 2, 151_936, 32_768, 1e6, biases=True),
    # 229 million weights, of which a token uses 55
    "qwen3moe-small": Shape("qwen3moe", 8, 512, 512, 8, 2, 49_152, 32_768, 1e6, experts=32, experts_used=4),
    # 3.0 billion weights, of which a token uses 1.1: Qwen3-30B-A3B with a third of its layers and a fourth of its experts
    "qwen3moe-1b": Shape("qwen3moe", 16, 2048, 768, 16, 4, 151_936, 32_768, 1e6, experts=32, experts_used=8),
}


def tensors_of(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes, rows first."""
    kv = shape.dim // shape.heads * shape.kv_heads
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (shape.vocabulary, shape.dim),
        "output_norm.weight": (shape.dim,),
    }
    for i in range(shape.layers):
        rows = {"attn_q": shape.dim, "attn_k": kv, "attn_v": kv}
        parts = {f"{name}.weight": (n, shape.dim) for name, n in rows.items()} | {
            "attn_output.weight": (shape.dim, shape.dim),
            **_feed_forward(shape),
        }
        vectors = {"attn_norm.weight": shape.dim, "ffn_norm.weight": shape.dim}
        vectors |= {f"{name}.bias": n for name, n in rows.items()} if shape.biases else {}
        if shape.experts:
            vectors |= {f"attn_{name}_norm.weight": shape.dim // shape.heads for name in "qk"}
        shapes |= {f"blk.{i}.{name}": size for name, size in parts.items()}
        shapes |= {f"blk.{i}.{name}": (n,) for name, n in vectors.items()}
    return shapes


def _feed_forward(shape: Shape) -> dict[str, tuple[int, ...]]:
    stack, end = ((shape.experts,), "_exps") if shape.experts else ((), "")
    sizes: dict[str, tuple[int, ...]] = {
        f"ffn_gate{end}.weight": (*stack, shape.ffn, shape.dim),
        f"ffn_up{end}.weight": (*stack, shape.ffn, shape.dim),
        f"ffn_down{end}.weight": (*stack, shape.dim, shape.ffn),
    }
    return sizes | ({"ffn_gate_inp.weight": (shape.experts, shape.dim)} if shape.experts else {})


def _format(name: str, size: tuple[int, ...]) -> BlockFormat:
    return BLOCK_FORMATS["F32" if len(size) == 1 or "ffn_gate_inp" in name else "F16"]


def weights(name: str, size: tuple[int, ...], seed: int) -> Iterator[np.ndarray]:
    """A tensor's bytes in parts: ones for norms, zeros for biases, else normal values that preserve activation magnitudes."""
    row = _format(name, size)
    if len(size) == 1:
        yield row.quantize(np.full((size[0], 1), name.endswith("norm.weight"), np.float32))
        return
    rng = np.random.default_rng(seed)
    rows, columns = prod(size[:-1]), size[-1]
    for first in range(0, rows, 4096):
        part = rng.standard_normal((min(4096, rows - first), columns), np.float32) / np.float32(columns**0.5)
        yield row.quantize(part.reshape(-1, 1))


def keys_of(shape: Shape, vocabulary: dict[str, Raw], tokens: list[bytes], kinds: np.ndarray) -> dict[str, Raw]:
    """The file's metadata: the shape's dimensions, and the vocabulary padded with unused tokens."""
    missing = shape.vocabulary - len(tokens)
    tokens = tokens + [f"<unused {i}>".encode() for i in range(missing)]
    kinds = np.concatenate([kinds, np.full(missing, UNUSED, np.int32)])
    text = b"".join(struct.pack("<Q", len(t)) + t for t in tokens)
    a = shape.architecture
    numbers = {"block_count": shape.layers, "context_length": shape.context, "embedding_length": shape.dim}
    numbers |= {"feed_forward_length": shape.ffn, "attention.head_count": shape.heads}
    numbers |= {"attention.head_count_kv": shape.kv_heads}
    keys: dict[str, Raw] = {"general.architecture": (STRING, struct.pack("<Q", len(a)) + a.encode())}
    keys |= {f"{a}.{name}": unsigned(value) for name, value in numbers.items()}
    keys |= {f"{a}.rope.freq_base": (FLOAT32, struct.pack("<f", shape.rope_base))}
    keys |= {f"{a}.attention.layer_norm_rms_epsilon": (FLOAT32, struct.pack("<f", 1e-6))}
    if shape.experts:
        head = {f"attention.{part}_length": shape.dim // shape.heads for part in ("key", "value")}
        counts = {"expert_count": shape.experts, "expert_used_count": shape.experts_used}
        counts |= {"expert_feed_forward_length": shape.ffn}
        keys |= {f"{a}.{name}": unsigned(value) for name, value in (head | counts).items()}
    keys |= {name: raw for name, raw in vocabulary.items() if name.startswith("tokenizer.")}
    keys["tokenizer.ggml.tokens"] = ARRAY, struct.pack("<IQ", STRING, len(tokens)) + text
    keys["tokenizer.ggml.token_type"] = ARRAY, struct.pack("<IQ", INT32, len(kinds)) + kinds.tobytes()
    return keys


def write(shape: Shape, tokenizer: Path, out: Path) -> None:
    """Write the model in F16, with norms, biases and routers in F32."""
    with open_gguf(tokenizer) as file:
        tokens = [str(t).encode() for t in file.metadata["tokenizer.ggml.tokens"]]  # type: ignore[union-attr]
        kinds = np.asarray(file.metadata["tokenizer.ggml.token_type"], np.int32)
        keys = keys_of(shape, values_of(file.metadata), tokens, kinds)
    tensors = [
        NewTensor(name, size, _format(name, size), partial(weights, name, size, seed))
        for seed, (name, size) in enumerate(tensors_of(shape).items())
    ]
    write_gguf(out, keys, tensors)


def make(
    shape: Shape,
    tokenizer: Path,
    out: Path,
    file_type: str,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> QuantizationResult:
    """Write the model in a file type of `camshaft quantize`, replacing an existing file."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        plain = Path(folder) / "plain.gguf"
        write(shape, tokenizer, plain)
        return quantize(plain, out, file_type, force=True, progress=progress)


def make_repeating(shape: Shape, tokenizer: Path, out: Path, file_type: str) -> None:
    """Write the model in a file type at once, replacing an existing file: each matrix repeats its first 256 rows, which takes
    seconds where drawing and quantizing billions of weights takes minutes."""
    mix = mix_named(file_type)
    with open_gguf(tokenizer) as file:
        tokens = [str(t).encode() for t in file.metadata["tokenizer.ggml.tokens"]]  # type: ignore[union-attr]
        kinds = np.asarray(file.metadata["tokenizer.ggml.token_type"], np.int32)
        keys = keys_of(shape, values_of(file.metadata), tokens, kinds)
    tensors = []
    for seed, (name, size) in enumerate(tensors_of(shape).items()):
        row = _format(name, size)
        if is_quantized(name, size):
            where = TensorPosition(part_of(name)[1], shape.layers, shape.heads // shape.kv_heads, shape.experts)
            row = format_for(mix, name, size[-1], where, is_output=name == "token_embd.weight")
        whole = _format(name, size) is row
        parts = partial(weights, name, size, seed) if whole else partial(_repeating, size, seed, row)
        tensors.append(NewTensor(name, size, row, parts))
    write_gguf(out, keys, tensors)


def _repeating(size: tuple[int, ...], seed: int, row: BlockFormat, first: int = 256) -> Iterator[np.ndarray]:
    rows, columns = prod(size[:-1]), size[-1]
    drawn = np.random.default_rng(seed).standard_normal((first, columns), np.float32) / np.float32(columns**0.5)
    blocks = row.quantize(drawn.reshape(-1, row.block_size)).reshape(first, -1)
    for done in range(0, rows, first):
        yield blocks[: rows - done]

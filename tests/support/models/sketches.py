"""Sketches: GGUF files with a llama's tensors and keys and random weights, for what looks at names and shapes alone."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

N_LAYERS = 12
DRAWN = 10007  # values, repeated in each tensor
# name: (row, row of ffn_down, heads, heads of the KV cache, whether the embedding makes the logits)
SKETCHES = {
    "wide": (256, 512, 8, 8, False),
    "shared": (512, 256, 8, 2, True),
    "narrow": (96, 256, 6, 2, True),
    "odd": (48, 80, 6, 3, False),
}


def sketch(name: str, folder: Path) -> Path:
    """The sketch `name`, written into the folder with weights in f32."""
    row, down, heads, kv_heads, tied = SKETCHES[name]
    path = folder / f"{name}.gguf"
    drawn = np.random.default_rng(len(name)).standard_normal(DRAWN, np.float32) * np.float32(0.1)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(64)
    writer.add_embedding_length(row)
    writer.add_feed_forward_length(down)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(row // heads)
    kv = row // heads * kv_heads
    shapes = {"token_embd": (32, row), "output_norm": (row,)} | ({} if tied else {"output": (32, row)})
    for i in range(N_LAYERS):
        parts = {"attn_q": (row, row), "attn_k": (kv, row), "attn_v": (kv, row), "attn_output": (row, row)}
        parts |= {"ffn_gate": (down, row), "ffn_up": (down, row), "ffn_down": (row, down)}
        parts |= {"attn_norm": (row,), "ffn_norm": (row,)}
        shapes |= {f"blk.{i}.{part}": shape for part, shape in parts.items()}
    for tensor, shape in shapes.items():
        writer.add_tensor(f"{tensor}.weight", np.resize(drawn, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def block_values(block_size: int) -> np.ndarray:
    """Values [n, block_size] to encode: bell curves of many widths, and blocks of zeros, constants, ties and spikes."""
    rng = np.random.default_rng(7)
    values = rng.standard_normal((8192 // block_size, block_size)) * np.geomspace(1e-4, 30, 8192 // block_size)[:, None]
    values[0], values[1], values[2] = 0, 0.5, -1
    values[3, 1::2], values[4] = 0, np.linspace(-1, 1, block_size)
    values[5, 3], values[6], values[7] = 900, np.abs(values[6]), -np.abs(values[7])
    return values.astype(np.float32)


def weighted_values() -> tuple[np.ndarray, np.ndarray]:
    """Rows [16, 512] to encode, of many widths, with zeros and constants among them, and an importance of each column [512]."""
    rng = np.random.default_rng(11)
    values = rng.standard_normal((16, 512)) * np.geomspace(1e-3, 3, 16)[:, None]
    values[1], values[2, :256], values[3] = 0, 0, 0.25
    importance = rng.standard_normal(512) ** 2 * np.exp(rng.standard_normal(512))
    importance[17], importance[64:96] = 0, 0
    return values.astype(np.float32), importance.astype(np.float32)

"""Weights that MLX quantized (affine, nvfp4, mxfp4, mxfp8), with their numbers and a product, for tests/data/mlx_codes.npz.

Run by itself where `mlx[cpu]` is installed: python -m scripts.oracles.mlx_codes
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

AFFINE = ((2, 32), (3, 32), (4, 64), (5, 64), (6, 32), (8, 128))
FLOATS = (("nvfp4", 16), ("mxfp4", 32), ("mxfp8", 32))


def frozen() -> dict[str, np.ndarray]:
    """The arrays by '<mode>_<what>': codes (u32), scales, biases, numbers (of every weight), y (x times the weights)."""
    import mlx.core as mx

    rng = np.random.default_rng(41)
    w, x = rng.normal(size=(2, 128)).astype(np.float32), rng.normal(size=(3, 128)).astype(np.float32)
    w[0, :32] = np.abs(w[0, :32])  # a group of positive numbers
    w[1, :32] = 0.5  # and one of equal numbers
    found = {"w": w, "x": x}
    for bits, group in AFFINE:
        made = mx.quantize(mx.array(w), group_size=group, bits=bits)
        found |= _parts(f"u{bits}", made, x, group_size=group, bits=bits)
    for mode, group in FLOATS:
        made = mx.quantize(mx.array(w), group_size=group, bits=8 if mode == "mxfp8" else 4, mode=mode)
        found |= _parts(mode, made, x, group_size=group, bits=8 if mode == "mxfp8" else 4, mode=mode)
    return found


def _parts(name: str, made, x: np.ndarray, **how) -> dict[str, np.ndarray]:
    import mlx.core as mx

    numbers = mx.dequantize(*made, **how).astype(mx.float32)
    product = mx.quantized_matmul(mx.array(x), *made, transpose=True, **how)
    arrays = zip(("codes", "scales", "biases"), made, strict=False)
    parts = {f"{name}_{what}": np.array(array) for what, array in arrays}
    return parts | {f"{name}_numbers": np.array(numbers), f"{name}_y": np.array(product)}


if __name__ == "__main__":
    np.savez_compressed(Path("tests/data/mlx_codes.npz"), **frozen())

"""AdamW with moments of 8 bits (Dettmers et al., 2022): codes of a dynamic map and a scale for each block of 256.

Moments are decoded, updated and used in f32, and encoded again: each code is that of the nearest value of the map. The maps are
those of bitsandbytes: 7 decades from 1e-7 to 1, each with twice as many values as the one below.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import f32, u8
from camshaft.graph import functions as f
from camshaft.graph.tensor import Tensor
from camshaft.ops.spec import TensorSpec
from camshaft.train.optimizers import AdamW, Update

Array = np.ndarray[Any, Any]
BLOCK = 256
LEAST = 4096  # elements of a parameter whose moments are 8-bit, as in bitsandbytes; the moments of others are f32


@dataclass(frozen=True)
class AdamW8bit(AdamW):
    """AdamW whose moments take 2 bytes a parameter in place of 8. Parameters of fewer than 4096 elements, and of f64, have those
    of AdamW."""

    def states(self, p: TensorSpec) -> Mapping[str, TensorSpec]:
        if not _is_coded(p):
            return super().states(p)
        codes, scales = TensorSpec((_blocks(p), BLOCK), u8), TensorSpec((_blocks(p), 1), f32)
        return {"m": codes, "m_scale": scales, "v": codes, "v_scale": scales}

    def update(self, now: Update) -> None:
        if not _is_coded(now.p.spec):
            super().update(now)
            return
        g = _in_blocks(now.g)
        m, v = (_decoded(now.states[n], now.states[f"{n}_scale"], values(n == "m")) for n in "mv")
        m = m * self.b1 + g * (1 - self.b1)
        v = v * self.b2 + f.square(g) * (1 - self.b2)
        c1, c2 = (-f.expm1(now.count * math.log(b)) if b else 1.0 for b in (self.b1, self.b2))
        moved = now.rate * (m / c1) / (f.sqrt(v / c2) + self.eps)
        decay = self.decay(now.name)
        old = now.p * (1.0 - now.rate * decay) if decay else now.p
        now.write(now.p, old - _flat(moved, now.p))
        for name, moment in (("m", m), ("v", v)):
            scale = f.max(f.abs(moment), axes=1, keepdims=True)
            now.write(now.states[name], _encoded(moment, scale, values(name == "m")))
            now.write(now.states[f"{name}_scale"], scale)


@functools.cache
def values(signed: bool) -> Array:
    """The 256 values of the dynamic map from 0 to 1, or from -1 to 1 if `signed`, in rising order: f32 [256]."""
    found = [0.0, 1.0]
    for decade in range(7):
        edges = np.linspace(0.1, 1.0, 2 ** (decade if signed else decade + 1) + 1)
        means = 10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2
        found += [*means, *(-means if signed else ())]
    return np.sort(np.array(found, np.float32))


def _decoded(codes: Tensor, scales: Tensor, table: Array) -> Tensor:
    made: Tensor = f.gather(table, f.cast(codes, to="i32").reshape((-1,))).reshape(codes.shape) * scales
    return made


def _encoded(x: Tensor, scales: Tensor, table: Array) -> Tensor:
    """The codes of the nearest values. A block of zeros has scale 0, and any codes."""
    share = x / f.maximum(scales, float(np.finfo(np.float32).tiny))
    made: Tensor = f.cast(f.searchsorted((table[:-1] + table[1:]) / 2, share.reshape((-1,))).reshape(x.shape), to="u8")
    return made


def _is_coded(p: TensorSpec) -> bool:
    return p.dtype == f32 and math.prod(p.bounds) >= LEAST


def _blocks(p: TensorSpec) -> int:
    return -(-math.prod(p.bounds) // BLOCK)


def _in_blocks(x: Tensor) -> Tensor:
    """[..] as [blocks, 256], filled up with zeros."""
    size, blocks = math.prod(x.spec.bounds), _blocks(x.spec)
    flat = x.reshape((size,))
    if blocks * BLOCK > size:
        flat = f.concat(flat, np.zeros(blocks * BLOCK - size, np.float32), axis=0)
    return flat.reshape((blocks, BLOCK))


def _flat(x: Tensor, p: Tensor) -> Tensor:
    """[blocks, 256] in the shape of p."""
    size = math.prod(p.spec.bounds)
    return x.reshape((-1,))[:size].reshape(p.shape)

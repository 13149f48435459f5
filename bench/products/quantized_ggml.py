"""ggml's quantized products of blocks from a file, the peer in quantized.py. Does not import camshaft."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

TYPES = {
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q2_K": 10,
    "Q3_K": 11,
    "Q4_K": 12,
    "Q5_K": 13,
}
TYPES |= {"Q6_K": 14, "IQ4_NL": 20, "IQ4_XS": 23, "BF16": 30, "MXFP4": 39}
TYPES |= {"IQ2_XXS": 16, "IQ2_XS": 17, "IQ3_XXS": 18, "IQ1_S": 19, "IQ3_S": 21, "IQ2_S": 22, "IQ1_M": 29}
TYPES |= {"TQ1_0": 34, "TQ2_0": 35, "NVFP4": 40}  # enum ggml_type


class Blocks:
    """Orders: {"format", "blocks", "m", "k", "n", "copies"}: products of n tokens with so many weights one after the other, each
    of the file `blocks` over and over. `ggml` is the path of bench/compare/peers/ggml.py."""

    def __init__(self, threads: int, ggml: str) -> None:
        spec = importlib.util.spec_from_file_location("ggml_peer", ggml)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.ggml, self.f32 = module.Ggml(threads), module.F32
        self.version, self.built_for = self.ggml.version, self.ggml.built_for

    def call(self, order: dict[str, Any]) -> Callable[[], object]:
        """A run of the graph."""
        api, kind = self.ggml.api, TYPES[order["format"]]
        m, k, n, copies = (order[name] for name in ("m", "k", "n", "copies"))
        part = np.fromfile(order["blocks"], np.uint8)
        context = self.ggml.context(copies * m * (k * 2 + n * 4) + n * k * 4)
        x = np.random.default_rng(0).standard_normal((n, k), np.float32)
        given = api["ggml_new_tensor_2d"](context, self.f32, k, n)
        ctypes.memmove(api["ggml_get_data"](given), x.ctypes.data, x.nbytes)
        outputs = []
        for _ in range(copies):
            weights = api["ggml_new_tensor_2d"](context, kind, k, m)
            data, nbytes = api["ggml_get_data"](weights), api["ggml_nbytes"](weights)
            for at in range(0, nbytes, part.size):
                ctypes.memmove(data + at, part.ctypes.data, min(part.size, nbytes - at))
            outputs.append(api["ggml_mul_mat"](context, weights, given))
        run = self.ggml.graph(context, outputs, copies)
        self.value = np.ctypeslib.as_array(self.ggml.floats(outputs[-1], m * n)).reshape(n, m)
        return run

    def check(self, given: object) -> float:
        """The mean size of what was computed last."""
        return float(np.abs(self.value).mean(dtype=np.float64))

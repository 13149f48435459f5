"""ggml's mixture-of-experts blocks of llama.cpp, the peer in moe.py. Does not import camshaft.

Stacks are in the buffer type that llama.cpp's loader gives them: repacked where ggml has a kernel for that.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

TYPES = {"Q4_0": 2, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "MXFP4": 39}  # enum ggml_type
_THREE = [c_void_p, c_void_p, c_void_p]
REPACKED = ("Q4_0", "Q4_K")  # others are placed as they are, for llama.cpp has no repacked kernels of them here
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "ggml_new_tensor_3d": (c_void_p, [c_void_p, c_int, c_int64, c_int64, c_int64]),
    "ggml_mul_mat_id": (c_void_p, [*_THREE, c_void_p]),
    "ggml_soft_max": (c_void_p, [c_void_p, c_void_p]),
    "ggml_argsort_top_k": (c_void_p, [c_void_p, c_void_p, c_int]),
    "ggml_get_rows": (c_void_p, _THREE),
    "ggml_sum_rows": (c_void_p, [c_void_p, c_void_p]),
    "ggml_div": (c_void_p, _THREE),
    "ggml_mul": (c_void_p, _THREE),
    "ggml_swiglu_split": (c_void_p, _THREE),
    "ggml_reshape_2d": (c_void_p, [c_void_p, c_void_p, c_int64, c_int64]),
    "ggml_reshape_3d": (c_void_p, [c_void_p, c_void_p, c_int64, c_int64, c_int64]),
    "ggml_view_2d": (c_void_p, [c_void_p, c_void_p, c_int64, c_int64, c_size_t, c_size_t]),
    "ggml_backend_get_device": (c_void_p, [c_void_p]),
    "ggml_backend_dev_backend_reg": (c_void_p, [c_void_p]),
    "ggml_backend_reg_get_proc_address": (c_void_p, [c_void_p, c_char_p]),
    "ggml_backend_buft_alloc_buffer": (c_void_p, [c_void_p, c_size_t]),
    "ggml_backend_buft_get_alloc_size": (c_size_t, [c_void_p, c_void_p]),
    "ggml_backend_buft_name": (c_char_p, [c_void_p]),
    "ggml_backend_buffer_get_base": (c_void_p, [c_void_p]),
    "ggml_backend_tensor_alloc": (c_int, [c_void_p, c_void_p, c_void_p]),
    "ggml_backend_tensor_set": (None, [c_void_p, c_void_p, c_size_t, c_size_t]),
}


class Blocks:
    """Orders of moe.py. `ggml` is the path of bench/compare/peers/ggml.py; `repack`: whether stacks are repacked."""

    def __init__(self, threads: int, ggml: str, repack: bool = True) -> None:
        spec = importlib.util.spec_from_file_location("ggml_peer", ggml)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.FUNCTIONS.update({name: ("base", *row) for name, row in FUNCTIONS.items()})
        self.ggml, self.f32, self.params = module.Ggml(threads), module.F32, module.InitParams
        self.api = self.ggml.api
        self.version, self.built_for = self.ggml.version, self.ggml.built_for
        self.repacking = self._repacking_type() if repack else None
        self.stacks: dict[tuple[Any, ...], Any] = {}

    def call(self, order: dict[str, Any]) -> Callable[[], object]:
        """A run of the graph: `copies` blocks on their own inputs, with the same stacks."""
        d, f, n, copies, n_experts = (order[name] for name in ("d", "f", "n", "copies", "experts"))
        key = tuple(order[name] for name in ("format", "blocks", "d", "f", "experts"))
        if key not in self.stacks:
            self.stacks[key] = [self._stack(order, *size) for size in ((d, f), (d, f), (f, d))]
        rows = copies * n * (order["slots"] * (3 * f + 4 * d) + 8 * n_experts + 16 * d)
        context = self.ggml.context(4 * (rows + d * n_experts) + (1 << 20))
        rng = np.random.default_rng(1)
        router = self._floats(context, rng.standard_normal((n_experts, d), np.float32) / np.float32(np.sqrt(d)))
        x = np.random.default_rng(0).standard_normal((copies, n, d), np.float32)
        outputs = [self._block(context, self._floats(context, part), router, self.stacks[key], order) for part in x]
        graph = self.api["ggml_new_graph_custom"](context, 128 * copies, False)
        for output in outputs:
            self.api["ggml_build_forward_expand"](graph, output)
        compute, backend = self.api["ggml_backend_graph_compute"], self.ggml.backend
        if compute(backend, graph):
            raise RuntimeError("ggml did not compute the graph")
        self.value = np.ctypeslib.as_array(self.ggml.floats(outputs[-1], n * d))
        return lambda: compute(backend, graph)

    def check(self, given: object) -> float:
        """The mean magnitude of the last block's result."""
        return float(np.abs(self.value).mean(dtype=np.float64))

    def _floats(self, context: Any, values: Any) -> Any:
        tensor = self.api["ggml_new_tensor_2d"](context, self.f32, values.shape[1], values.shape[0])
        ctypes.memmove(self.api["ggml_get_data"](tensor), np.ascontiguousarray(values).ctypes.data, values.nbytes)
        return tensor

    def _stack(self, order: dict[str, Any], k: int, n: int) -> Any:
        """A stack [n_experts, n, k] of the file's blocks over and over, repacked or as it is."""
        api, part = self.api, np.fromfile(order["blocks"], np.uint8)
        sizes = TYPES[order["format"]], k, n, order["experts"]
        if self.repacking is None or order["format"] not in REPACKED:
            tensor = api["ggml_new_tensor_3d"](self.ggml.context(k * n * order["experts"] * 2), *sizes)
            data = np.resize(part, api["ggml_nbytes"](tensor))
            ctypes.memmove(api["ggml_get_data"](tensor), data.ctypes.data, data.size)
            return tensor
        tensor = api["ggml_new_tensor_3d"](api["ggml_init"](self.params(1 << 16, None, True)), *sizes)
        nbytes = api["ggml_backend_buft_get_alloc_size"](self.repacking, tensor)
        buffer = api["ggml_backend_buft_alloc_buffer"](self.repacking, nbytes)
        if api["ggml_backend_tensor_alloc"](buffer, tensor, api["ggml_backend_buffer_get_base"](buffer)):
            raise RuntimeError("ggml did not place the stack")
        data = np.resize(part, api["ggml_nbytes"](tensor))
        api["ggml_backend_tensor_set"](tensor, data.ctypes.data, 0, data.size)
        return tensor

    def _repacking_type(self) -> Any:
        """The CPU's buffer type that repacks weights."""
        api = self.api
        device = api["ggml_backend_get_device"](self.ggml.backend)
        registry = api["ggml_backend_dev_backend_reg"](device)
        address = api["ggml_backend_reg_get_proc_address"](registry, b"ggml_backend_dev_get_extra_bufts")
        found = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(address)(device)
        for i in range(8):
            if not found[i]:
                break
            if b"REPACK" in api["ggml_backend_buft_name"](found[i]):
                return found[i]
        raise RuntimeError("ggml has no buffer type that repacks")

    def _block(self, context: Any, x: Any, router: Any, stacks: Any, order: dict[str, Any]) -> Any:
        """The nodes of llama.cpp's build_moe_ffn, softmax weights divided by their sum."""
        d, n, n_experts, slots = (order[name] for name in ("d", "n", "experts", "slots"))
        gate, up, down = stacks

        def node(name: str, *given: Any) -> Any:
            return self.api[f"ggml_{name}"](context, *given)

        chances = node("soft_max", node("mul_mat", router, x))
        chosen = node("argsort_top_k", chances, slots)
        weights = node("get_rows", node("reshape_3d", chances, 1, n_experts, n), chosen)
        weights = node("reshape_2d", weights, slots, n)
        weights = node("div", weights, node("sum_rows", weights))
        rows = node("reshape_3d", x, d, 1, n)
        products = (node("mul_mat_id", w, rows, chosen) for w in (gate, up))
        made = node("mul_mat_id", down, node("swiglu_split", *products), chosen)
        made = node("mul", made, node("reshape_3d", weights, 1, slots, n))
        total = None
        for s in range(slots):
            slot = node("view_2d", made, d, n, 4 * d * slots, 4 * d * s)
            total = slot if total is None else node("add", total, slot)
        return total

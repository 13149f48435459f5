"""Small adds and quantized products as ggml graphs, through the library in llama-cpp-python."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

F32 = 0
TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14}  # enum ggml_type


class InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


# function: (library, what it returns, what it takes), by ggml.h, ggml-backend.h and ggml-cpu.h
FUNCTIONS: dict[str, tuple[str, Any, list[Any]]] = {
    "ggml_init": ("base", c_void_p, [InitParams]),
    "ggml_new_tensor_1d": ("base", c_void_p, [c_void_p, c_int, c_int64]),
    "ggml_new_tensor_2d": ("base", c_void_p, [c_void_p, c_int, c_int64, c_int64]),
    "ggml_add": ("base", c_void_p, [c_void_p, c_void_p, c_void_p]),
    "ggml_mul_mat": ("base", c_void_p, [c_void_p, c_void_p, c_void_p]),
    "ggml_new_graph_custom": ("base", c_void_p, [c_void_p, c_size_t, c_bool]),
    "ggml_build_forward_expand": ("base", None, [c_void_p, c_void_p]),
    "ggml_graph_n_nodes": ("base", c_int, [c_void_p]),
    "ggml_get_data": ("base", c_void_p, [c_void_p]),
    "ggml_nbytes": ("base", c_size_t, [c_void_p]),
    "ggml_quantize_chunk": ("base", c_size_t, [c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p]),
    "ggml_version": ("base", c_char_p, []),
    "ggml_backend_graph_compute": ("base", c_int, [c_void_p, c_void_p]),
    "ggml_backend_cpu_init": ("cpu", c_void_p, []),
    "ggml_backend_cpu_set_n_threads": ("cpu", None, [c_void_p, c_int]),
}


class Ggml:
    """ggml's CPU backend. A graph is built from the tensors in `outputs`, and each call runs all of it."""

    def __init__(self, threads: int) -> None:
        import llama_cpp

        folder = Path(llama_cpp.__file__).parent / "lib"
        found = {name: ctypes.CDLL(str(next(folder.glob(f"*ggml-{name}.*")))) for name in ("base", "cpu")}
        self.api: dict[str, Any] = {}
        for name, (library, gives, takes) in FUNCTIONS.items():
            self.api[name] = getattr(found[library], name)
            self.api[name].restype, self.api[name].argtypes = gives, takes
        self.backend = self.api["ggml_backend_cpu_init"]()
        self.api["ggml_backend_cpu_set_n_threads"](self.backend, threads)
        self.version = f"ggml {self.api['ggml_version']().decode()} of llama-cpp-python {llama_cpp.__version__}"
        self.built_for = llama_cpp.llama_print_system_info().decode().strip()

    def context(self, nbytes: int) -> Any:
        """Allocate memory for tensors of `nbytes` in total."""
        made = self.api["ggml_init"](InitParams(nbytes + (16 << 20), None, False))
        if not made:
            raise MemoryError(f"ggml_init refused {nbytes} bytes")
        return made

    def graph(self, context: Any, outputs: list[Any], n_nodes: int) -> Callable[[], object]:
        """Return a function that computes the outputs; it has run once."""
        graph = self.api["ggml_new_graph_custom"](context, 2 * n_nodes + 8, False)
        for output in outputs:
            self.api["ggml_build_forward_expand"](graph, output)
        compute, backend = self.api["ggml_backend_graph_compute"], self.backend
        if self.api["ggml_graph_n_nodes"](graph) != n_nodes or compute(backend, graph):
            raise RuntimeError("ggml did not compute the graph")
        return lambda: compute(backend, graph)

    def floats(self, tensor: Any, n: int) -> Any:
        """A float32 tensor's elements."""
        return ctypes.cast(self.api["ggml_get_data"](tensor), POINTER(c_float * n)).contents


class Adds(Ggml):
    """Orders: {"adds": n}. Each add reads the result of the previous one."""

    def call(self, order: dict[str, Any]) -> Callable[[], object]:
        """Return a function that runs the graph, after checking its result."""
        n, context = order["adds"], self.context(0)
        step = last = self.api["ggml_new_tensor_1d"](context, F32, 16)
        self.floats(step, 16)[:] = [1.0] * 16
        for _ in range(n):
            last = self.api["ggml_add"](context, last, step)
        run = self.graph(context, [last], n)
        if self.floats(last, 16)[:] != [n + 1.0] * 16:
            raise RuntimeError(f"ggml's {n} adds gave {self.floats(last, 16)[0]}")
        return run


class Products(Ggml):
    """Orders: {"format", "m", "k", "n", "copies"}: `copies` products in sequence, each with its own weights."""

    def call(self, order: dict[str, Any]) -> Callable[[], object]:
        """Return a function that runs the graph. Weights are random numbers quantized by ggml."""
        import numpy as np

        api, kind = self.api, TYPES[order["format"]]
        m, k, n, copies = (order[name] for name in ("m", "k", "n", "copies"))
        rng = np.random.default_rng(0)
        x, w = rng.standard_normal((n, k), np.float32), rng.standard_normal((m, k), np.float32)
        context = self.context(copies * m * (k * 2 + n * 4) + n * k * 4)
        given = api["ggml_new_tensor_2d"](context, F32, k, n)
        ctypes.memmove(api["ggml_get_data"](given), x.ctypes.data, x.nbytes)
        outputs = []
        for _ in range(copies):
            weights = api["ggml_new_tensor_2d"](context, kind, k, m)
            done = api["ggml_quantize_chunk"](kind, w.ctypes.data, api["ggml_get_data"](weights), 0, m, k, None)
            if done != api["ggml_nbytes"](weights):
                raise RuntimeError(f"ggml quantized {done} bytes of {api['ggml_nbytes'](weights)}")
            outputs.append(api["ggml_mul_mat"](context, weights, given))
        run = self.graph(context, outputs, copies)
        self.value = np.ctypeslib.as_array(self.floats(outputs[-1], m * n)).reshape(n, m)
        return run

    def check(self, given: object) -> float:
        """The mean magnitude of the last result."""
        import numpy as np

        return float(np.abs(self.value).mean(dtype=np.float64))

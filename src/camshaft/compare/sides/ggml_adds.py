"""The same adds as a graph of ggml's, by the library that llama-cpp-python brings. A side of the comparison."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

F32 = 0


class InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool))


# function: (library, what it returns, what it takes), by ggml.h, ggml-backend.h and ggml-cpu.h
FUNCTIONS: dict[str, tuple[str, Any, list[Any]]] = {
    "ggml_init": ("base", c_void_p, [InitParams]),
    "ggml_new_tensor_1d": ("base", c_void_p, [c_void_p, c_int, c_int64]),
    "ggml_add": ("base", c_void_p, [c_void_p, c_void_p, c_void_p]),
    "ggml_new_graph_custom": ("base", c_void_p, [c_void_p, c_size_t, c_bool]),
    "ggml_build_forward_expand": ("base", None, [c_void_p, c_void_p]),
    "ggml_graph_n_nodes": ("base", c_int, [c_void_p]),
    "ggml_get_data_f32": ("base", POINTER(c_float), [c_void_p]),
    "ggml_version": ("base", c_char_p, []),
    "ggml_backend_graph_compute": ("base", c_int, [c_void_p, c_void_p]),
    "ggml_backend_cpu_init": ("cpu", c_void_p, []),
    "ggml_backend_cpu_set_n_threads": ("cpu", None, [c_void_p, c_int]),
}


class Adds:
    """Orders: {"adds": n}, each of which reads the one before, as the CPU backend runs them."""

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

    def call(self, order: dict[str, Any]) -> Callable[[], object]:
        """A run of the graph, which was seen to add."""
        api, n = self.api, order["adds"]
        context = api["ggml_init"](InitParams(16 << 20, None, False))
        step = last = api["ggml_new_tensor_1d"](context, F32, 16)
        for i in range(16):
            api["ggml_get_data_f32"](step)[i] = 1.0
        for _ in range(n):
            last = api["ggml_add"](context, last, step)
        graph = api["ggml_new_graph_custom"](context, 2 * n + 8, False)
        api["ggml_build_forward_expand"](graph, last)
        compute, backend = api["ggml_backend_graph_compute"], self.backend
        if api["ggml_graph_n_nodes"](graph) != n or compute(backend, graph):
            raise RuntimeError("ggml did not compute the graph")
        if any(api["ggml_get_data_f32"](last)[i] != n + 1 for i in range(16)):
            raise RuntimeError(f"ggml's {n} adds gave {api['ggml_get_data_f32'](last)[0]}")
        return lambda: compute(backend, graph)

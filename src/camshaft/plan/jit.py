"""@camshaft.jit: a function of arrays, traced once per set of shapes and dtypes into a graph and run as a plan."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype
from camshaft.errors import PlanError
from camshaft.graph.graph import Graph, Tensor
from camshaft.plan.compile import compile
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.selection.override import get_backend_override

Array = np.ndarray[Any, Any]


def jit(function: Callable[..., Any] | None = None, *, backend: str | None = None, threads: int | None = None) -> Any:
    """Decorates a function of arrays that calls camshaft's ops, with `backend` and `threads` as in camshaft.compile.

    Positional arguments become inputs of a graph; NumPy arrays that the function itself brings to an op become constants.
    Keyword arguments are constants of the trace and part of its signature. Gives NumPy arrays, shaped as the function's
    result is (one, or a tuple). PlanError if the function returns something else than tensors of its trace. Called with
    tensors of a graph it becomes part of that graph.
    """
    if function is None:
        return functools.partial(jit, backend=backend, threads=threads)
    return functools.wraps(function)(_Jitted(function, backend, threads))


class _Jitted:
    """One plan per signature, kept. Calls from several threads take turns."""

    def __init__(self, function: Callable[..., Any], backend: str | None, threads: int | None) -> None:
        self._function, self._backend, self._threads = function, backend, threads
        self._plans: dict[Any, tuple[ExecutionPlan, bool]] = {}
        self._lock = threading.RLock()

    def __call__(self, *arrays: Any, **constants: Any) -> Any:
        if any(isinstance(a, Tensor) for a in arrays):
            return self._function(*arrays, **constants)
        values = [np.asarray(a) for a in arrays]
        with self._lock:
            plan, single = self._plan_for(values, constants)
            results = plan.run(**{f"argument{i}": v for i, v in enumerate(values)})
            outputs = tuple(results[f"result{i}"].copy() for i in range(len(results)))
        return outputs[0] if single else outputs

    def _plan_for(self, values: list[Array], constants: dict[str, Any]) -> tuple[ExecutionPlan, bool]:
        given = tuple((name, type(value), value) for name, value in sorted(constants.items()))  # 1 is not True
        key = (tuple((v.shape, v.dtype) for v in values), given, get_backend_override())
        try:
            hash(key)
        except TypeError as error:
            raise PlanError(f"jit of {self._function.__name__}: {error} among its keyword arguments") from None
        if key not in self._plans:
            self._plans[key] = self._trace(values, constants)
        return self._plans[key]

    def _trace(self, values: list[Array], constants: dict[str, Any]) -> tuple[ExecutionPlan, bool]:
        graph = Graph()
        inputs = [graph.input(f"argument{i}", v.shape, as_dtype(v.dtype)) for i, v in enumerate(values)]
        result = self._function(*inputs, **constants)
        results = result if isinstance(result, tuple) else (result,)
        for i, tensor in enumerate(results):
            if not isinstance(tensor, Tensor) or tensor.graph is not graph:
                raise PlanError(
                    f"jit of {self._function.__name__}: result {i} is {tensor!r}; wanted a tensor of the traced ops"
                )
            graph.output(f"result{i}", tensor)
        return compile(graph, backend=self._backend, threads=self._threads), not isinstance(result, tuple)

    def plan(self, *arrays: Any, **constants: Any) -> ExecutionPlan:
        """The plan that these arguments run; plan.explain() tells what it does."""
        with self._lock:
            return self._plan_for([np.asarray(a) for a in arrays], constants)[0]

"""camshaft.grad and value_and_grad: the gradients of a function of arrays, traced and run as camshaft.jit does."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from operator import index
from typing import Any, SupportsIndex

import numpy as np

from camshaft.dtypes import PARTS, DType
from camshaft.errors import PlanError, ShapeError
from camshaft.graph.graph import Tensor
from camshaft.graph.tensor import graph_of
from camshaft.plan.jit import jit, leaves, paths, with_leaves


def value_and_grad(
    function: Callable[..., Any] | None = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    backend: str | None = None,
    threads: int | None = None,
) -> Any:
    """Returns a function of the same arguments that returns `function`'s result and its gradients.

    `function` returns one float: a tensor of one element. `argnums` are the positions of the arguments to differentiate by, which
    are arrays of floats or dicts, lists, tuples, named tuples and dataclasses of them. The gradients have their structure,
    shapes and dtypes, with None for anything that is not an array; of several positions they are a tuple. With `has_aux` the
    function returns (loss, aux), where aux is not differentiated, and so does the value. `backend` and `threads` are those of
    jit.

    Called with arrays it is traced once per set of shapes and dtypes, as a function of camshaft.jit; with tensors of a graph it
    adds nodes, so that it can be differentiated again. Raises PlanError and ShapeError, naming the argument, where it cannot be
    differentiated; for ops see Graph.gradients.
    """
    if function is None:
        return functools.partial(value_and_grad, argnums=argnums, has_aux=has_aux, backend=backend, threads=threads)
    if not callable(function):
        raise PlanError(f"value_and_grad: got {function!r:.80}; wanted a function of arrays")
    places = _places(argnums)

    def differentiated(*args: Any, **kwargs: Any) -> Any:
        result, found = _differentiated(function, places, has_aux, args, kwargs)
        return result, found[0] if isinstance(argnums, SupportsIndex) else found

    return jit(functools.wraps(function, updated=())(differentiated), backend=backend, threads=threads)


def grad(
    function: Callable[..., Any] | None = None,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    *,
    backend: str | None = None,
    threads: int | None = None,
) -> Any:
    """As value_and_grad, but the function returns the gradients alone; with `has_aux`, (gradients, aux)."""
    if function is None:
        return functools.partial(grad, argnums=argnums, has_aux=has_aux, backend=backend, threads=threads)
    if not callable(function):
        raise PlanError(f"grad: got {function!r:.80}; wanted a function of arrays")
    both = value_and_grad(function, argnums, has_aux)

    def differentiated(*args: Any, **kwargs: Any) -> Any:
        result, found = both(*args, **kwargs)
        return (found, result[1]) if has_aux else found

    return jit(functools.wraps(function, updated=())(differentiated), backend=backend, threads=threads)


def _places(argnums: int | Sequence[int]) -> tuple[int, ...]:
    given = [argnums] if isinstance(argnums, SupportsIndex) else argnums
    whole = isinstance(given, (list, tuple)) and all(_is_place(n) for n in given)
    found = tuple(index(n) for n in given) if whole else ()
    if not found or len(set(found)) < len(found):
        raise PlanError(f"grad: got argnums {argnums!r}; wanted the positions of arguments, from 0 on, each once")
    return found


def _is_place(value: Any) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, (bool, np.ndarray)) and index(value) >= 0


def _differentiated(
    function: Callable[..., Any], places: tuple[int, ...], has_aux: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, tuple[Any, ...]]:
    """The function's result on tensors, and its gradients by the arguments at these places."""
    if max(places) >= len(args):
        raise PlanError(f"grad: got {len(args)} arguments by position; wanted one at each of {list(places)}")
    given, wrt = list(args), list[Tensor]()
    for place in places:
        given[place] = _variables(_name(function, place), args[place], wrt)
    result = function(*given, **kwargs)
    loss = _loss(result, has_aux)
    found = iter(graph_of(loss).gradients(loss, wrt))
    return result, tuple(_gradients(given[place], found) for place in places)


def _variables(name: str, argument: Any, wrt: list[Tensor]) -> Any:
    """The argument with a view in place of each tensor: the same tensor may be used elsewhere too."""
    values, structure = leaves(argument)
    made: list[Any] = []
    for path, value in zip(paths(structure, name), values, strict=True):
        if not isinstance(value, Tensor):
            if type(value) in (int, float, bool) and structure is None:
                raise ShapeError(f"grad: {path} is {value!r}; wanted an array, such as np.float32({value!r})")
            made.append(value)
            continue
        if not isinstance(value.dtype, DType) or not (value.dtype.is_float or value.dtype in PARTS):
            raise ShapeError(f"grad: {path} is {value}; wanted floats, as others have no gradient")
        wrt.append(graph_of(value).reshape(value, value.shape))
        made.append(wrt[-1])
    return with_leaves(argument, iter(made))


def _gradients(argument: Any, found: Iterator[Tensor]) -> Any:
    """The argument with the next gradient in place of each tensor, and None in place of other values."""
    values, _ = leaves(argument)
    return with_leaves(argument, iter([next(found) if isinstance(v, Tensor) else None for v in values]))


def _loss(result: Any, has_aux: bool) -> Tensor:
    if has_aux and not (isinstance(result, tuple) and len(result) == 2):
        raise PlanError(f"grad: got {result!r:.80}; wanted (loss, aux) of a function with has_aux")
    loss = result[0] if has_aux else result
    if not isinstance(loss, Tensor):
        raise PlanError(f"grad: got the loss {loss!r:.80}; wanted a tensor of one float")
    return loss


def _name(function: Callable[..., Any], place: int) -> str:
    """The name of the argument at a position."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    named = [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    return named[place] if place < len(named) else f"arguments[{place}]"

"""Writes the type stubs of the ops' functions, which are made on first use.

Run after a change to an op's formula or parameters: `python scripts/stubs.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, Signature
from pathlib import Path

from camshaft import ops
from camshaft.ops import signatures

PACKAGE = Path(__file__).parents[1] / "src" / "camshaft"
WIDTH = 120

TENSORS_HEAD = '''"""The types of the ops as functions on tensors of a graph. Written by scripts/stubs.py."""

from numpy.typing import ArrayLike

from camshaft.extent import Extent
from camshaft.graph.tensor import Tensor

__all__ = {names}
'''
BOTH_HEAD = '''"""The types of the ops as functions of arrays and tensors, camshaft.<op>. Written by scripts/stubs.py."""

from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import ArrayLike

from camshaft.extent import Extent
from camshaft.graph.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, Any]

__all__ = {names}
'''
ARRAYS_HEAD = '''"""The types of the ops as functions on arrays, camshaft.table().<op>. Written by scripts/stubs.py.

A result is an ndarray, a scalar of NumPy, or an array of the inputs' own library.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from camshaft.extent import Extent

Array: TypeAlias = np.ndarray[Any, Any]

class ArrayFunctions:
'''


def tensors_stub() -> str:
    """The text of graph/tensor_functions.pyi."""
    made = (_function(op.name, signatures.of_tensors(op.name), f"{op.formula}.", "") for op in ops.all_ops())
    return TENSORS_HEAD.format(names=_names()) + "\n" + "".join(made).rstrip() + "\n"


def both_stub() -> str:
    """The text of eager/op_functions.pyi: two overloads of each op, the first for arrays alone."""
    text = ""
    for op in ops.all_ops():
        arrays, tensors = signatures.of_arrays(op.name), signatures.of_tensors(op.name)
        text += _overload(op.name, arrays) + _overload(op.name, tensors)
    return BOTH_HEAD.format(names=_names()) + "\n" + text.rstrip() + "\n"


def _names() -> str:
    return "\n".join(["[", *(f'    "{name}",' for name in sorted(ops.NAMES)), "]"])


def _overload(name: str, signature: Signature) -> str:
    return "@overload\n" + _head(name, signature, "", " ...") + " ...\n"


def arrays_stub() -> str:
    """The text of eager/array_functions.pyi."""
    itself = Parameter("self", Parameter.POSITIONAL_ONLY)
    text = ARRAYS_HEAD
    for op in ops.all_ops():
        given = signatures.of_arrays(op.name)
        method = given.replace(parameters=[itself, *given.parameters.values()])
        text += _function(op.name, method, signatures.help_of(op), "    ")
    return text.rstrip() + "\n"


STUBS = {
    PACKAGE / "graph" / "tensor_functions.pyi": tensors_stub,
    PACKAGE / "eager" / "array_functions.pyi": arrays_stub,
    PACKAGE / "eager" / "op_functions.pyi": both_stub,
}


def _function(name: str, signature: Signature, doc: str, indent: str) -> str:
    """A function of a stub as ruff formats it."""
    end = "\n" if "\n" in doc else ""
    lines = [line and f"{indent}    {line}" for line in f'"""{doc}{end}"""'.split("\n")]
    return "\n".join([_head(name, signature, indent), *lines]) + "\n\n"


def _head(name: str, signature: Signature, indent: str, tail: str = "") -> str:
    """The head of a function, in lines of WIDTH with the tail that follows it."""
    parameters, returns = list(_parameters(signature)), signature.return_annotation
    head = f"{indent}def {name}({', '.join(parameters)}) -> {returns}:"
    if len(head + tail) > WIDTH:
        inner = f"{indent}    {', '.join(parameters)}"
        lines = [inner] if len(inner) <= WIDTH else [f"{indent}    {p}," for p in parameters]
        head = "\n".join([f"{indent}def {name}(", *lines, f"{indent}) -> {returns}:"])
    return head


def _parameters(signature: Signature) -> Iterator[str]:
    """The parameters' texts, with the slash and the star that tell their kinds."""
    kinds, shown = [p.kind for p in signature.parameters.values()], None
    for p in signature.parameters.values():
        if shown is Parameter.POSITIONAL_ONLY and p.kind is not shown:
            yield "/"
        if p.kind is Parameter.KEYWORD_ONLY is not shown and Parameter.VAR_POSITIONAL not in kinds:
            yield "*"
        yield _parameter(p)
        shown = p.kind
    if shown is Parameter.POSITIONAL_ONLY:
        yield "/"


def _parameter(p: Parameter) -> str:
    text = f"*{p.name}" if p.kind is Parameter.VAR_POSITIONAL else p.name
    typed = text if p.annotation is Parameter.empty else f"{text}: {p.annotation}"
    return typed if p.default is Parameter.empty else f"{typed} = {_literal(p.default)}"


def _literal(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


if __name__ == "__main__":
    for path, text_of in STUBS.items():
        path.write_text(text_of(), "utf-8")

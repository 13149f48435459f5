"""DispatchTable: every op as an attribute that is called on arrays, as in table().matmul(a, b)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from camshaft import ops
from camshaft.backends.registry import backend_named
from camshaft.eager.array_op import ArrayOp
from camshaft.eager.choices import anything
from camshaft.errors import BackendError
from camshaft.ops.op import NodeSpec, Op
from camshaft.selection.choice import Choice
from camshaft.selection.override import check_override, get_backend_override
from camshaft.selection.select import Measurements
from camshaft.validation.evidence import BackendValidation

if TYPE_CHECKING:
    from camshaft.eager.array_functions import ArrayFunctions  # the ops' types, written by scripts/stubs.py
else:
    ArrayFunctions = object

Check = Callable[[Choice, NodeSpec], None]


class DispatchTable(ArrayFunctions):
    """Frozen: the ops under one override, as attributes, each made on first use.

    A table never changes its choices for known shapes, dtypes and attributes (an op remembers the last MOST_REMEMBERED). An
    attribute is a function of arrays; its `__self__` is the ArrayOp, which has `choice`.
    """

    override: str | None

    def __init__(self, override: str | None, measurements: Measurements | None = None, check: Check = anything) -> None:
        """`check(choice, node)` raises for a choice that this table must not make."""
        vars(self).update(
            override=override,
            _measurements=measurements,
            _check=check,
            _lock=threading.RLock(),
        )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        known = vars(self)
        if "_lock" not in known or name not in ops.NAMES:
            raise AttributeError(f"the dispatch table has no op {name!r}; it has {', '.join(self.ops)}")
        with known["_lock"]:
            if name not in known:
                known[name] = self._make(ops.get(name))
            made: Callable[..., Any] = known[name]
            return made

    def _make(self, op: Op) -> Callable[..., Any]:
        if ops.is_composite(op):
            from camshaft.eager.composite_op import CompositeOp  # imports the graph, which other ops do not need

            return CompositeOp(op, functools.partial(getattr, self)).call
        return ArrayOp(op, self.override, vars(self)["_measurements"], vars(self)["_check"]).call

    @property
    def ops(self) -> tuple[str, ...]:
        """The names of the ops."""
        return ops.NAMES

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.ops})

    def choice(self, op: str, *inputs: Any, **attrs: Any) -> Choice:
        """Returns the variant that a call with these arguments runs, and why."""
        if op not in self.ops:
            raise BackendError(f"choice: the dispatch table has no op {op!r:.80}; wanted one of {', '.join(self.ops)}")
        chosen: Choice = getattr(self, op).__self__.choice(*inputs, **attrs)
        return chosen

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a dispatch table is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a dispatch table is frozen: {name} cannot be deleted")

    def __repr__(self) -> str:
        return f"<DispatchTable of {len(self.ops)} ops on {self.override or 'the best backends'}>"


_tables: dict[str | None, DispatchTable] = {}
_lock = threading.Lock()


def _table(override: str | None) -> DispatchTable:
    found = _tables.get(override)
    if found is None:
        with _lock:
            found = _tables.get(override) or _tables.setdefault(override, DispatchTable(override))
    return found


def table(override: str | None = None) -> DispatchTable:
    """The table of a backend, or, without a name, of the current override (see get_backend_override)."""
    wanted = get_backend_override() if override is None else check_override(override)
    return _tables.get(wanted) or _table(wanted)


def select_kernels(
    validation: Mapping[str, BackendValidation], measurements: Measurements | None = None
) -> DispatchTable:
    """Returns a separate table that runs only what this validation proved, chosen by these measurements.

    Its override is the current one. A call whose choice was not proved is a BackendError.
    """
    if not isinstance(validation, Mapping) or not all(isinstance(v, BackendValidation) for v in validation.values()):
        raise BackendError(f"select_kernels: got {validation!r:.80}; wanted what validate_backends returns")
    results = ((name, v) for name, found in validation.items() for v in found.results)
    proved = frozenset((v.op, v.variant, name) for name, v in results if v.status == "proved")

    def check(choice: Choice, node: NodeSpec) -> None:
        name = choice.op.name, choice.variant.name, backend_named(choice.backend).name
        if name not in proved:
            inputs = ", ".join(map(str, node.inputs))
            raise BackendError(f"{name[0]} of {inputs}: {name[1]} ({name[2]}) is not among what the validation proved")

    return DispatchTable(get_backend_override(), measurements, check)

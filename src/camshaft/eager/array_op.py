"""ArrayOp: one op called on arrays under one override; its kernels are compiled once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MethodType
from typing import Any

import numpy as np

from camshaft.backends.device import HOST
from camshaft.backends.registry import device
from camshaft.dtypes import as_dtype
from camshaft.eager import elementwise_call, native_call
from camshaft.eager.any_length import flat_kernel, flat_node, in_callers_shapes, n_inputs, n_sample_inputs
from camshaft.eager.choices import Choices, anything, remember
from camshaft.eager.elementwise_call import AnyLength, Resolved
from camshaft.eager.native import cpython_abi
from camshaft.eager.native.state_layout import MOST_INPUTS
from camshaft.eager.numpy_calls.call import Call
from camshaft.eager.numpy_calls.table import FORMS, masked
from camshaft.eager.numpy_forms import attributes_of, check_core, count_of
from camshaft.eager.operands import as_kind, check_cast, check_places, has_places, kind_of, output
from camshaft.eager.shapes import shaped_call
from camshaft.eager.shapes.new_shapes import Kinds
from camshaft.eager.shapes.runners import Plan, Prepared
from camshaft.errors import ArrayTypeError, BackendError, ShapeError
from camshaft.ops.arguments import Array, Dtypes, Operand, attribute_key, kinds_of, operand
from camshaft.ops.op import NodeSpec, Op
from camshaft.ops.signatures import builtin_text, described
from camshaft.selection.choice import Choice
from camshaft.selection.select import Measurements

Attrs = Mapping[str, Any]


class ArrayOp:
    """An op on arrays. `call` is what a table returns: a builtin where native calls can be made and the op is elementwise, else
    this object's own method; either has this object as `__self__`.
    """

    __slots__ = (
        "_calls",
        "_form",
        "_kernels",
        "_kinds",
        "_lock",
        "_plain",
        "_python",
        "_resolved",
        "_shaped",
        "_state",
        "call",
        "choices",
        "n_inputs",
        "op",
        "override",
        "slow",
    )

    def __init__(
        self,
        op: Op,
        override: str | None,
        measurements: Measurements | None = None,
        check: Callable[[Choice, NodeSpec], None] = anything,
    ) -> None:
        self.op, self.override = op, override
        self.choices = Choices(op, override, measurements, check)
        self._lock = threading.RLock()
        self._calls: dict[Hashable, Prepared] = {}
        self._kernels: dict[Hashable, AnyLength] = {}
        self._kinds = Kinds()
        self._form = FORMS.get(op.name)
        self._plain: dict[Hashable, AnyLength] = {}
        self._resolved: dict[Hashable, Resolved] = {}
        self._state: native_call.Words | None = None
        self._shaped: native_call.Words | None = None
        self.n_inputs = n_inputs(op)
        # `slow` takes what `call` leaves; rows know it by its address. `_python` is the last of them.
        self._python: Callable[..., Any] = self.run
        self.slow = self.call = self._python
        if cpython_abi.refusal() is None:
            self._make_native()
        if self.call is self._python:
            called = ArrayOp.run_at_places if has_places(op) else ArrayOp.run
            self.call = MethodType(described(called, op), self)

    def _make_native(self) -> None:
        """A builtin with a row for each set of shapes; before it, where the op is elementwise, one with a row for each dtype."""
        name, text = self.op.name, builtin_text(self.op)
        count = self.n_inputs or n_sample_inputs(self.op)
        if 0 < count <= MOST_INPUTS and not self.op.updates:
            self._shaped = native_call.new_state(self.slow, native_call.SHAPED_WORDS)
            self.call = native_call.builtin(name, text, "shaped", count, self, self._shaped)
        if self.n_inputs:
            self.slow = self.call
            self._state = native_call.new_state(self.slow, native_call.FLAT_WORDS)
            self.call = native_call.builtin(name, text, "flat", self.n_inputs, self, self._state)

    def __repr__(self) -> str:
        return f"<{self.op.name} on {self.override or 'the best backend'}>"

    def run(self, *inputs: Any, out: Any = None, **attrs: Any) -> Any:
        """The op's output on arrays, a tuple of them, or None for an op that only writes in place; in `out` where it is given.

        Arrays are ndarrays or whatever has `__array__`, `__dlpack__` or the buffer protocol; results are ndarrays, or of the
        first DLPack kind among the inputs. ShapeError, which is a ValueError or TypeError where NumPy raises one.
        """
        if out is None:
            result = self._kinds.call(self, inputs, attrs)
            if result is not None:
                return result
        asked = None if self._form is None or not inputs else self._form(self.op.name, inputs, attrs)
        if asked is not None or ("where" in attrs and self.n_inputs):
            return self._as_numpy(asked or Call(inputs, attrs), inputs, out)
        if self.n_inputs or len(inputs) > count_of(self.op.name, len(inputs)):
            inputs, out = self._arguments(inputs, out)
        name = self.op.name
        operands = [operand(x, name) for x in inputs]
        if self.n_inputs:
            result = self._elementwise(operands, output(out), attrs)
        else:
            shaped_call.check_updates(self.op, inputs)
            result = shaped_call.call(self, operands, out, attrs)
        if out is not None:
            return out[0] if isinstance(out, tuple) and len(out) == 1 else out
        kind = kind_of(inputs)
        return result if kind is None else as_kind(kind, result)

    def _as_numpy(self, asked: Call, inputs: tuple[Any, ...], out: Any) -> Any:
        """The result of a call in NumPy's terms, as an array of the caller's kind or in `out`."""
        listed = inputs[0] if isinstance(inputs[0], list | tuple) else ()
        attrs, kind = dict(asked.attrs), kind_of((*inputs, *listed))
        given, where = asked.inputs, True
        if self.n_inputs:
            (given, out), where = self._arguments(given, out), attrs.pop("where", True)
        result = asked.ready if asked.ready is not None else self.call(*map(operand, given), **attrs)
        result = result if asked.finish is None else asked.finish(result)
        if where is not True:
            result = masked(result, where, output(out))
        elif out is not None:
            targets = out if isinstance(out, tuple) else (out,)
            for target, made in zip(targets, result if isinstance(result, tuple) else (result,), strict=True):
                written = output(target)
                if written is not None:
                    check_core(self.op.name, written.shape, np.shape(made))
                    check_cast(self.op.name, np.asarray(made).dtype, written.dtype)
                    np.copyto(written, made, casting="same_kind")
        if out is not None:
            return out[0] if isinstance(out, tuple) and len(out) == 1 else out
        return result if kind is None else as_kind(kind, result)

    def choice(self, *inputs: Any, **attrs: Any) -> Choice:
        """Returns the variant that such a call runs, and why."""
        arrays = [np.asarray(x) for x in inputs]
        return self.choices.select(shaped_call.node_of(self.op, arrays, attrs))

    def replace(self, key: Hashable, prepared: Prepared) -> None:
        """Puts another prepared call in the place of one."""
        with self._lock:
            self._calls[key] = prepared

    def known(self, key: Hashable) -> Prepared | None:
        """The call prepared for a key, or None."""
        return self._calls.get(key)

    def once(self, key: Hashable, make: Callable[[], Prepared]) -> Prepared:
        """Returns the cached result of `make` for a key; only one thread calls it."""
        found = self._calls.get(key)
        if found is None:
            with self._lock:
                found = self._calls.get(key) or make()
                remember(self._calls, key, found)
        return found

    def remember(self, operands: Sequence[Operand], attrs: Attrs, prepared: Prepared) -> None:
        """Registers the call with the builtin, where it supports it."""
        if self._shaped is not None and all(type(x) is np.ndarray for x in operands):
            native_call.add_shape_row(self._shaped, operands, attrs, prepared, self.n_inputs > 0)  # type: ignore[arg-type]

    def record(self, operands: Sequence[Operand], attrs: Attrs, prepared: Prepared, plan: Plan) -> None:
        """Records a prepared call, so that calls of other shapes need no preparation."""
        if all(type(x) is np.ndarray for x in operands) and not self.op.updates:
            with self._lock:
                self._kinds.record(self, operands, attrs, prepared, plan)

    def run_at_places(self, *inputs: Any, out: Any = None, **attrs: Any) -> Any:
        """As `run`, for an op over a paged cache. ShapeError also for positions, slots and blocks out of bounds."""
        check_places(self.op, inputs, attrs)
        return self.run(*inputs, out=out, **attrs)

    def _arguments(self, inputs: tuple[Any, ...], out: Any) -> tuple[tuple[Any, ...], Any]:
        name = self.op.name
        n = self.n_inputs or count_of(name, len(inputs))
        if not n <= len(inputs) <= n + 1:
            was = "was" if len(inputs) == 1 else "were"
            wanted = f"from {n} to {n + 1} positional arguments but {len(inputs)} {was} given"
            raise ArrayTypeError(f"{name}() takes {wanted}")
        if len(inputs) == n:
            return inputs, out
        if out is not None:
            raise ArrayTypeError("cannot specify 'out' as both a positional and keyword argument")
        return inputs[:n], inputs[n]

    def _elementwise(self, operands: Sequence[Operand], out: Array | None, attrs: Attrs) -> Any:
        attrs = attributes_of(self.op.name, attrs, 0) if attrs else attrs
        kinds = kinds_of(operands)
        key = kinds, attribute_key(attrs)
        how = self._resolved.get(key)
        if how is None:
            accepts = functools.partial(self._accepts, attrs=attrs)
            kernel_of = functools.partial(self._kernel, attrs=attrs)
            try:
                how = elementwise_call.resolved(self.op.name, kinds, accepts, kernel_of)
            except (ShapeError, BackendError) as error:
                raise type(error)(in_callers_shapes(str(error), operands)) from error
            with self._lock:
                remember(self._resolved, key, how)
        return elementwise_call.call(self, how, operands, out, attrs)

    def _accepts(self, dtypes: Dtypes, attrs: Attrs) -> bool:
        try:
            flat_node(self.op, [as_dtype(d) for d in dtypes], attrs)
        except ShapeError:
            return False
        return True

    def _kernel(self, dtypes: Dtypes, attrs: Attrs) -> AnyLength:
        known = self._kernels if attrs else self._plain
        key = (dtypes, attribute_key(attrs)) if attrs else dtypes
        found = known.get(key)
        if found is None:
            with self._lock:
                found = known.get(key) or self._make_kernel(dtypes, attrs)
                if attrs:
                    remember(self._kernels, key, found)
                else:  # rows of native calls have the addresses of these; there are as many as sets of dtypes
                    self._plain[dtypes] = found
        return found

    def _make_kernel(self, dtypes: Dtypes, attrs: Attrs) -> AnyLength:
        if attrs:
            self.op.parameters.check(self.op.name, attrs)
        here = self.override is None or device(self.override).space == HOST
        made = flat_kernel(self.op, [as_dtype(d) for d in dtypes], attrs, self.choices.select) if here else None
        if made is None:
            return shaped_call.EachLength(self, dtypes, attrs)
        if self._state is not None and not attrs:
            native_call.add_dtype_row(self._state, made, elementwise_call.share_from(made))
        return made

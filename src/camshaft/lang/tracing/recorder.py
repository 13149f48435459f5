"""Recorder, which appends instructions and statements to the open block, and the arrays and variables of a kernel."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import numpy as np

from camshaft.dtypes import DType, boolean, f32
from camshaft.errors import KernelError
from camshaft.lang import ir, traversal
from camshaft.lang.instructions import COMBINERS, INSTRUCTIONS

Number: TypeAlias = ir.Operand
_LANGUAGE = str(Path(ir.__file__).parent), contextlib.__file__  # files that no kernel is written in


class Recorder:
    """The state of a trace: the open block, whether it is inside k.lanes, and the first error."""

    def __init__(self, name: str, filename: str) -> None:
        self.name, self.filename = name, filename
        self.body = ir.Block()
        self.block = self.body
        self.scratches: list[ir.Array] = []
        self.in_lanes = False
        self.broken: KernelError | None = None
        self.loop_line = 0

    # --- recording -------------------------------------------------------------------------------------------------
    def line(self) -> int:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.filename:
            frame = frame.f_back  # type: ignore[assignment]
        return frame.f_lineno if frame is not None else 0

    def fail(self, message: str) -> KernelError:
        """Return a KernelError with the kernel's name and source line, and the place in a function of another file."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename.startswith(_LANGUAGE):
            frame = frame.f_back
        place = "" if frame is None else self._elsewhere(frame.f_code.co_filename, frame.f_lineno)
        return KernelError(f"kernel {self.name}, line {self.line()}{place}: {message}")

    def _elsewhere(self, filename: str, line: int) -> str:
        """The place of an error in a function that the kernel calls, such as a row of an op table; empty in its own file."""
        return "" if filename == self.filename else f" ({Path(filename).name}, line {line})"

    def foreign(self, error: Exception) -> KernelError:
        """Return the KernelError for a Python exception from the kernel, with the kernel's innermost line."""
        line, place, trace = 0, "", error.__traceback__
        while trace is not None:
            filename = trace.tb_frame.f_code.co_filename
            line = trace.tb_lineno if filename == self.filename else line
            if not filename.startswith(_LANGUAGE):
                place = self._elsewhere(filename, trace.tb_lineno)
            trace = trace.tb_next
        return KernelError(f"kernel {self.name}, line {line}{place}: {type(error).__name__}: {error}")

    def left_early(self, line: int) -> KernelError:
        """Return the KernelError for a loop, opened at `line`, that break or return left."""
        return KernelError(
            f"kernel {self.name}, line {line}: a traced loop was left early (break, return or an exception): "
            "loops run to their end; use k.when"
        )

    def check_open(self, value: ir.Value) -> None:
        block: ir.Block | None = self.block
        while block is not None:
            if block is value.block:
                return
            block = block.parent
        raise self.fail(f"{value!r} is used outside the loop that made it; keep it in a variable (k.var)")

    def record(
        self, op: str, dtype: DType, args: tuple[ir.Value, ...] = (), width: int = 0, attr: Any = None
    ) -> ir.Value:
        """Append an instruction to the open block."""
        if self.broken:
            raise self.broken
        for arg in args:
            self.check_open(arg)
        value = ir.Value(op, dtype, args, width, attr, self.block, self.line())
        self.block.statements.append(value)
        return value

    def append(self, statement: ir.Statement) -> None:
        if self.broken:
            raise self.broken
        for arg in traversal.operands(statement):
            self.check_open(arg)
        self.block.statements.append(statement)

    def const(self, value: float | int | bool, dtype: DType) -> ir.Value:
        """Record a constant of that dtype."""
        return self.record("const", dtype, attr=value)

    def as_value(self, value: Number, dtype: DType) -> ir.Value:
        """Return a Value unchanged; record a Python number as a constant of `dtype`."""
        if isinstance(value, ir.Value):
            return value
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.fail(f"wanted a traced value or a number, got {type(value).__name__}")
        if isinstance(value, float) and not dtype.is_float:
            raise self.fail(f"the number {value} does not fit {dtype}; use .to(f32) first")
        if dtype.is_integer and not np.iinfo(dtype.numpy).min <= value <= np.iinfo(dtype.numpy).max:
            raise self.fail(f"the number {value} does not fit {dtype}")
        return self.const(value, dtype)

    def apply(self, name: str, *args: Number) -> ir.Value:
        """Record a row of the instruction table; Python numbers take the dtype of the traced operands."""
        row = INSTRUCTIONS[name]
        typed = [a for a in (args[1:] if name == "select" else args) if isinstance(a, ir.Value)]
        dtype = typed[0].dtype if typed else f32
        values = [self.as_value(a, boolean if name == "select" and i == 0 else dtype) for i, a in enumerate(args)]
        checked = values[1:] if name == "select" else values
        if name not in ("dot4", "dot2") and any(v.dtype != dtype for v in checked):
            raise self.fail(
                f"{name} of {', '.join(str(v.dtype) for v in checked)}: wanted one dtype; convert with .to(...)"
            )
        if checked[0].dtype.kind not in row.kinds:
            raise self.fail(f"{name} does not take {checked[0].dtype}")
        width = self._common_width(name, values)
        return self.record(name, boolean if row.result == "bool" else checked[0].dtype, tuple(values), width)

    def _common_width(self, name: str, values: list[ir.Value]) -> int:
        widths = {v.width for v in values if v.width}
        if len(widths) > 1:
            raise self.fail(f"{name} of vectors of {sorted(widths)} elements: wanted one width")
        if widths and self.in_lanes:
            raise self.fail("explicit vectors do not go inside k.lanes")
        return widths.pop() if widths else 0


class Variable:
    """The result of k.var and k.accumulator: read `.value`; assign with `.set(x)`, `+=` or `.combine(x)`."""

    def __init__(self, var: ir.Var) -> None:
        self.ir = var

    @property
    def value(self) -> ir.Value:
        value: ir.Value = ir.recorder().record("var_get", self.ir.dtype, (), self.ir.width, self.ir)
        return value

    def set(self, value: Number) -> None:
        """Assign. The dtype and the width cannot change."""
        k = ir.recorder()
        new = k.as_value(value, self.ir.dtype)
        if new.dtype != self.ir.dtype or (new.width and new.width != self.ir.width):
            raise k.fail(f"a {new!r} set into a variable of {self.ir.dtype}, width {self.ir.width}")
        k.append(ir.VarSet(k.line(), self.ir, new))

    def combine(self, value: Number) -> None:
        """Combine a value into an accumulator by the accumulator's kind."""
        kind = self.ir.identity or "sum"
        self.set(ir.recorder().apply(COMBINERS[kind], self.value, value))

    def __iadd__(self, value: Number) -> Variable:
        self.set(self.value + value)
        return self


class Array:
    """An array as a kernel sees it: x[row, c] reads, x[row, c] = v writes."""

    def __init__(self, array: ir.Array, shape: tuple[Any, ...] | None = None) -> None:
        """`shape`: the axes that the kernel indexes, where the IR's array is flat because sizes are run-time scalars."""
        self.ir = array
        self.shape: tuple[Any, ...] = array.shape if shape is None else shape
        self.dtype = array.dtype

    def in_ir(self, indices: tuple[Number, ...]) -> tuple[Number, ...]:
        """The indices of the IR's array."""
        if len(indices) != len(self.shape):
            message = f"{self.ir.name} has {len(self.shape)} dimensions, indexed with {len(indices)}"
            raise ir.recorder().fail(message)
        if len(self.shape) == len(self.ir.shape):
            return indices
        place = indices[0]
        for index, size in zip(indices[1:], self.shape[1:], strict=True):
            place = place * size + index
        return (place,)

    def __getitem__(self, indices: Any) -> ir.Value:
        loaded: ir.Value = ir.recorder().load(self, indices if isinstance(indices, tuple) else (indices,))
        return loaded

    def __setitem__(self, indices: Any, value: Number) -> None:
        ir.recorder().store(self, indices if isinstance(indices, tuple) else (indices,), value)

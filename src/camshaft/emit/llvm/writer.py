"""Writer: the text under construction and the forms of values (scalar, vector, lane index)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from camshaft.dtypes import DType, i64
from camshaft.emit.llvm.typed import Typed
from camshaft.emit.llvm.values import Rep, literal, scalar_type, vector_type
from camshaft.emit.target import CpuTarget
from camshaft.errors import KernelError
from camshaft.lang import ir
from camshaft.lang.uniformity import varying


class Writer:
    """Holds what is known of each value while text is written. `mask` is the active lanes, None where all are."""

    def __init__(self, kernel: ir.KernelIR, target: CpuTarget) -> None:
        self.kernel, self.target, self.lanes = kernel, target, target.lanes
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.declarations: dict[str, str] = {}
        self.reps: dict[ir.Value, Rep] = {}
        self.slots: dict[ir.Var, str] = {}
        self.tiles: dict[ir.Tile, list[list[Any]]] = {}  # by piece, its variables
        self.mask: str | None = None
        self.mask_is_prefix = False
        self.fences = False  # stores went around the caches
        self._count = 0
        self.varying, self.varying_vars = varying(kernel)

    # --- writing -----------------------------------------------------------------------------------------------------
    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"%{prefix}.{self._count}"

    def label(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}.{self._count}"

    def open(self, label: str) -> None:
        self.lines.append(f"{label}:")

    def write(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def line(self, text: str) -> str:
        """Writes an instruction and gives the name of its result."""
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        return name

    def declare(self, name: str, text: str) -> None:
        self.declarations[name] = text

    def fail(self, line: int, message: str) -> KernelError:
        return KernelError(f"kernel {self.kernel.name}, line {line}: {message}")

    def counted_loop(self, start: str, stop: str, step: int, body: Callable[[str], None]) -> None:
        """for (i = start; i < stop; i += step) body(i)."""
        head, inside, done = self.label("head"), self.label("body"), self.label("done")
        slot = self.fresh("counter")
        self.allocas.append(f"{slot} = alloca i64")
        self.write(f"store i64 {start}, ptr {slot}")
        self.write(f"br label %{head}")
        self.open(head)
        counter = self.line(f"load i64, ptr {slot}")
        more = self.line(f"icmp slt i64 {counter}, {stop}")
        self.write(f"br i1 {more}, label %{inside}, label %{done}")
        self.open(inside)
        body(counter)
        self.write(f"store i64 {self.line(f'add nsw i64 {counter}, {step}')}, ptr {slot}")
        self.write(f"br label %{head}")
        self.open(done)

    # --- forms -------------------------------------------------------------------------------------------------------
    def mask_type(self) -> str:
        return f"<{self.lanes} x i1>"

    def iota_type(self) -> str:
        return f"<{self.lanes} x i64>"

    def iota(self, n: int | None = None, dtype: DType = i64) -> str:
        element, count = scalar_type(dtype), n or self.lanes
        if count == 1:
            return literal(0, dtype)
        return "<" + ", ".join(f"{element} {literal(i, dtype)}" for i in range(count)) + ">"

    def splat_i64(self, name: str) -> str:
        return self.splat(name, i64, self.lanes)

    def splat(self, name: str, dtype: DType, n: int) -> str:
        element, vector = scalar_type(dtype), vector_type(dtype, n)
        if n <= 1:
            return name
        if not name.startswith("%"):
            return f"splat ({element} {name})"
        first = self.line(f"insertelement {vector} poison, {element} {name}, i64 0")
        return self.line(f"shufflevector {vector} {first}, {vector} poison, <{n} x i32> zeroinitializer")

    def widened(self, rep: Rep, dtype: DType, n: int) -> str:
        """The value's name as `n` elements: a scalar is repeated, a lane index is spelled out."""
        if rep.affine is not None:
            base = self.splat_i64(rep.affine.base.name)
            steps = [rep.affine.coefficient * (i // rep.affine.divisor) for i in range(self.lanes)]
            offsets = "<" + ", ".join(f"i64 {s}" for s in steps) + ">"
            return self.line(f"add nsw {self.iota_type()} {base}, {offsets}")
        return rep.name if n <= 1 or rep.n else self.splat(rep.name, dtype, n)

    def first_lane(self, rep: Rep) -> str:
        """The name of the first lane's i64."""
        if rep.affine is not None:
            return rep.affine.base.name
        return rep.name if rep.n <= 1 else self.line(f"extractelement {self.iota_type()} {rep.name}, i64 0")

    def operand(self, rep: Rep, dtype: DType, n: int) -> str:
        """Type and name, as LLVM wants an operand."""
        return f"{vector_type(dtype, n)} {self.widened(rep, dtype, n)}"

    def var_width(self, var: ir.Var) -> int:
        return var.width or (self.lanes if var in self.varying_vars and self.lanes > 1 else 0)

    def width_of(self, reps: tuple[Rep, ...]) -> int:
        """The common width of operands: that of the vectors among them."""
        return max((rep.n or (self.lanes if rep.affine is not None else 0) for rep in reps), default=0)

    def typed(self, dtype: DType, n: int) -> Typed:
        return Typed(self.line, self.declare, dtype, n, self.target)

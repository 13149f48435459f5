"""Typed: writes LLVM instructions on values of one dtype and width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from camshaft.dtypes import DType, f32, f64
from camshaft.emit.llvm.values import literal, vector_type
from camshaft.emit.target import CpuTarget


@dataclass(frozen=True)
class Typed:
    """Writes instructions on values of `n` elements of `dtype` (n 0: scalar)."""

    line: Callable[[str], str]
    declare: Callable[[str, str], None]
    dtype: DType
    n: int
    target: CpuTarget

    def type_of(self, dtype: DType | None = None) -> str:
        return vector_type(dtype or self.dtype, self.n)

    def const(self, value: float, dtype: DType | None = None) -> str:
        """A constant operand of this width."""
        chosen = dtype or self.dtype
        text = literal(value, chosen)
        return f"splat ({vector_type(chosen, 0)} {text})" if self.n > 1 else text

    def op(self, opcode: str, *names: str) -> str:
        return self.line(f"{opcode} {self.type_of()} {', '.join(names)}")

    def bitcast(self, name: str, dtype: DType) -> str:
        """The same bits as another dtype of that size."""
        return self.line(f"bitcast {self.type_of()} {name} to {self.type_of(dtype)}")

    def call(self, intrinsic: str, *names: str) -> str:
        """An overloaded intrinsic whose operands and result all have this type."""
        if intrinsic == "llvm.fma" and self.dtype == f32 and not self.target.has_fma:
            return self._fma_in_f64(*names)
        suffix = (f"v{self.n}" if self.n > 1 else "") + self.dtype.name.replace("u", "i")
        result, name = self.type_of(), f"{intrinsic}.{suffix}"
        self.declare(name, f"declare {result} @{name}({', '.join([result] * len(names))})")
        return self.line(f"call {result} @{name}({', '.join(f'{result} {n}' for n in names)})")

    def _fma_in_f64(self, a: str, b: str, c: str) -> str:
        """An f32 multiply-add where LLVM would call fmaf lane by lane: the product is exact in f64, so is almost every sum."""
        wide = self.as_dtype(f64)
        a, b, c = (self.line(f"fpext {self.type_of()} {x} to {wide.type_of()}") for x in (a, b, c))
        total = wide.op("fadd", wide.op("fmul", a, b), c)
        return self.line(f"fptrunc {wide.type_of()} {total} to {self.type_of()}")

    def select(self, condition: str, a: str, b: str) -> str:
        mask = f"<{self.n} x i1>" if self.n > 1 else "i1"
        return self.line(f"select {mask} {condition}, {self.type_of()} {a}, {self.type_of()} {b}")

    def as_dtype(self, dtype: DType) -> Typed:
        """The same writer and width for another dtype."""
        return Typed(self.line, self.declare, dtype, self.n, self.target)

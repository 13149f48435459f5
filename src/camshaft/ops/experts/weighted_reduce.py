"""moe_weighted_reduce: out[t] = sum_s w[t, s] y[t, s] + sigmoid(g[t]) shared[t] + residual[t].

`terms` are tensors [T, d] that are added: the shared expert's result, the residual. A term [T] or [T, 1] is the gate of the
term before it (for d = 1 only [T] is a gate). Sums are in f32, in the order of slots, then of terms, and rounded once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, bf16, f16, f32, i32
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE, partly_active, rounded
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec

NAME = "moe_weighted_reduce"
FLOATS = (f32, f16, bf16)


@kernel
def reduce_slots(
    k: Tracer, y: Array, weights: Array, *arrays: Any, dim: int, n_slots: int, gates: tuple[bool, ...], block: int
) -> None:
    # out[t, c] = sum_s w[t, s] y[t, s, c] + sum of terms, each times the sigmoid of its gate; `gates` says which terms are gates
    given, out = arrays[: len(gates)], arrays[len(gates)]
    token, first = k.program(0), k.program(1) * block
    shares = [weights[token, s] for s in range(n_slots)]
    terms: list[tuple[Array, Value | None]] = []
    for array, is_gate in zip(given, gates, strict=True):
        if is_gate:
            terms[-1] = terms[-1][0], 1.0 / (1.0 + k.exp(-array[token]))
        else:
            terms.append((array, None))
    for c in k.lanes(first, k.minimum(first + block, dim)):
        total = shares[0] * y[token, 0, c]
        for s in range(1, n_slots):
            total = k.fma(shares[s], y[token, s, c], total)
        for array, gate in terms:
            total = total + array[token, c] if gate is None else k.fma(gate, array[token, c], total)
        out[token, c] = total


def _gates(y: TensorSpec, terms: Sequence[TensorSpec]) -> tuple[bool, ...]:
    """Returns which terms are gates."""
    return tuple(len(t.shape) == 1 or (t.shape[-1:] == (1,) and y.shape[-1] != 1) for t in terms)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) >= 2, NAME, specs, "y [T, S, d], weights [T, S], then terms [T, d] and gates [T]")
    y, weights, *terms = specs
    fits = y.is_plain and y.dtype in FLOATS and len(y.shape) == 3 and 0 not in y.bounds
    fits = fits and not any(isinstance(d, Extent) for d in y.shape[1:])
    ops.expect(fits, NAME, y, "y of f32, f16 or bf16 [T, S, d], no axis empty, and an Extent only as T")
    ops.expect(weights == TensorSpec(y.shape[:2], f32), NAME, weights, f"weights of {TensorSpec(y.shape[:2], f32)}")
    tokens, dim = y.shape[0], y.shape[2]
    gates = _gates(y, terms)
    for i, (term, is_gate) in enumerate(zip(terms, gates, strict=True)):
        good = term.shape in ((tokens,), (tokens, 1)) if is_gate else term.shape == (tokens, dim)
        wanted = TensorSpec((tokens, dim), as_dtype(y.dtype))
        ops.expect(good and term.is_plain and term.dtype == y.dtype, NAME, term, f"a term {wanted} or its gate [T]")
        ops.expect(not is_gate or (i > 0 and not gates[i - 1]), NAME, term, "a term before each gate")
    return (TensorSpec((tokens, dim), as_dtype(y.dtype)),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    y, weights, *terms = (a.astype(np.float64) for a in inputs)
    specs = [TensorSpec(a.shape, f32) for a in (y, *terms)]
    total = (weights[..., None] * y).sum(1)
    added: list[ops.Array] = []
    for term, is_gate in zip(terms, _gates(specs[0], specs[1:]), strict=True):
        if is_gate:
            added[-1] = added[-1] / (1 + np.exp(-term.reshape(-1, 1)))
        else:
            added.append(term)
    return (rounded(total + sum(added), as_dtype(inputs[0].dtype)),)


def _decompose(f: Any, y: Any, weights: Any, *terms: Any) -> Any:
    tokens, n_slots, _ = y.shape
    wide = f.cast(y, to="f32")
    total = f.sum(wide * weights.reshape((tokens, n_slots, 1)), axes=1)
    added: list[Any] = []
    for term, is_gate in zip(terms, _gates(y.spec, [t.spec for t in terms]), strict=True):
        value = f.cast(term, to="f32")
        if is_gate:
            added[-1] = added[-1] * f.sigmoid(value.reshape((tokens, 1)))
        else:
            added.append(value)
    for value in added:
        total = total + value
    return f.cast(total, to=y.dtype.name)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    y, _, *terms = node.inputs
    tokens, n_slots, dim = y.bounds
    gates, block = _gates(y, terms), blocks.even_block(dim)
    given = [ops.read(2 + i, shape=(tokens,) if is_gate else None) for i, is_gate in enumerate(gates)]
    constants: dict[str, Constant] = {"dim": dim, "n_slots": n_slots, "gates": gates, "block": block}
    grid = ops.Cells(y.shape[0]), ops.Cells(dim, block)
    return ops.Build((ops.Launch(reduce_slots, (ops.read(0), ops.read(1), *given, ops.write(0)), grid, constants),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(6)

    def drawn(*shape: int, dtype: Any = np.float32) -> ops.Array:
        return np.asarray(rng.normal(size=shape)).astype(dtype)

    yield ops.Sample("1x1x1", (drawn(1, 1, 1), drawn(1, 1)))
    rows = (drawn(5, 3, 33), drawn(5, 3), drawn(5, 33), drawn(5, 1), drawn(5, 33))
    yield ops.Sample("shared, gate and residual", rows)
    yield partly_active(ops.Sample("3 of 5 tokens", rows), 3)
    for dtype in (f16, bf16):
        half = tuple(a if i == 1 else a.astype(dtype.numpy) for i, a in enumerate(rows[:3]))
        yield ops.Sample(f"residual, {dtype.name}", half)


def _error_samples() -> Iterable[ops.ErrorSample]:
    y, w, row = (TensorSpec(shape, f32) for shape in ((4, 2, 8), (4, 2), (4, 8)))
    gate = TensorSpec((4,), f32)
    yield ops.ErrorSample((y,), {}, "wanted y")
    yield ops.ErrorSample((TensorSpec((4, 2, 8), i32), w), {}, "wanted y of f32, f16 or bf16")
    yield ops.ErrorSample((y, TensorSpec((4, 3), f32)), {}, r"wanted weights of f32\[4, 2\]")
    yield ops.ErrorSample((y, w, TensorSpec((4, 7), f32)), {}, r"wanted a term f32\[4, 8\]")
    yield ops.ErrorSample((y, w, gate), {}, "wanted a term before each gate")
    yield ops.ErrorSample((y, w, row, gate, gate), {}, "wanted a term before each gate")


OP = ops.Op(
    name=NAME,
    formula="out[t] = sum_s weights[t, s] y[t, s] + sum of terms [t], each times the sigmoid of the gate after it",
    parameters=Parameters("y weights *terms"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("blocks", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TO_TOLERANCE,
    flops=lambda node: 2.0 * float(np.prod(node.inputs[0].bounds)),
    decompose=_decompose,
)

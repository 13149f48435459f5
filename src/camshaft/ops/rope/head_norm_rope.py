"""head_norm_rope: rms_norm of each head, then rope with NeoX pairs, in one pass over queries or keys (Qwen3, Gemma 3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from camshaft.dtypes import DType, as_dtype, bf16, f16, f32, i32
from camshaft.lang import Array, Tracer, ir, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.norm.frame import weight
from camshaft.ops.parameters import EPS, HEAD_DIM, HEADS, OFFSET, Parameters
from camshaft.ops.rope.decomposition import rotated
from camshaft.ops.rope.frame import (
    TOLERANCE,
    Rotation,
    angles,
    checked,
    heads_together,
    refuse_positions,
    rotate_head,
    threads_of,
)
from camshaft.ops.rope.table import rope_table
from camshaft.ops.spec import TensorSpec


@kernel
def one_token_per_program(
    k: Tracer, x: Array, w: Array, positions: Array, table: Array, out: Array, *,
    heads: int, head_dim: int, n_pairs: int, eps: float, offset: float,
) -> None:  # fmt: skip
    # y[h, c] = x[h, c] / sqrt(mean_c(x[h]^2) + eps) * (w[c] + offset); then the pairs (i, i + n_pairs) of each y[h] are rotated
    token, start = k.program(0), k.program(1) * (heads * head_dim)
    angle = angles(k, positions, table, token, n_pairs, ((0, n_pairs, 0, 0),), (), False)
    for head in k.range(heads):
        first, squares = start + head * head_dim, k.accumulator("sum")
        for c in k.lanes(head_dim):
            squares.set(k.fma(x[token, first + c], x[token, first + c], squares.value))
        scale = k.rsqrt(k.lanes_sum(squares) / k.number(head_dim, f32) + eps)

        def load(c: ir.Value, strided: bool, first: ir.Value = first, scale: ir.Value = scale) -> ir.Value:
            return x[token, first + c] * scale * weight(w, c, offset)

        def store(c: ir.Value, value: ir.Value, strided: bool, first: ir.Value = first) -> None:
            out[token, first + c] = value

        rotate_head(k, load, store, angle, head_dim=head_dim, interleaved=False, parts=((0, n_pairs, 0),))
    refuse_positions(k, positions, table, out, token, start, heads * head_dim)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    name = "head_norm_rope"
    ops.expect(len(specs) == 4, name, specs, "x [T, heads * head_dim], w [head_dim], positions [T], table")
    x = checked(name, (specs[0], *specs[2:]), attrs, None)
    want = TensorSpec((attrs["head_dim"],), as_dtype(x.dtype))
    ops.expect(specs[1] == want, name, specs[1], f"w of {want}")
    eps, offset = attrs.get("eps", 0.0), attrs.get("offset", 0.0)
    ops.expect(eps > 0, name, eps, "eps above 0")
    ops.expect(isinstance(offset, (int, float)) and isfinite(offset), name, offset, "offset, a finite number")
    return (x,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, w, positions, table = inputs
    wide = x.astype(np.float64).reshape(len(x), attrs["heads"], attrs["head_dim"])
    y = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + attrs["eps"])
    y = (y * (w.astype(np.float64) + attrs.get("offset", 0.0))).reshape(x.shape)
    n = table.shape[1] // 2
    rotation = Rotation(False, ((0, n, 0),), ((0, n, 0, 0),))
    return (rotated(rotation, y, positions[:, None], table, attrs),)


def _decompose(f: Any, x: Any, w: Any, positions: Any, table: Any, heads: int, head_dim: int, **norm: Any) -> Any:
    dtype = as_dtype(x.dtype)
    if dtype != f32:
        x, w = f.cast(x, to="f32"), f.cast(w, to="f32")
    y = f.rms_norm(x.reshape((x.shape[0], heads, head_dim)), w, **norm).reshape(x.shape)
    made = f.rope(y, positions, table, heads=heads, head_dim=head_dim, pairing="neox")
    return made if dtype == f32 else f.cast(made, to=dtype.name)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, _, positions, table = node.inputs
    arrays = (ops.read(0), ops.read(1), ops.read(2, shape=(positions.bounds[0], 1)), ops.read(3), ops.write(0))
    heads = heads_together(node.attrs, target)
    constants = {"heads": heads, **{name: node.attrs[name] for name in ("head_dim", "eps")}}
    constants |= {"offset": node.attrs.get("offset", 0.0), "n_pairs": table.bounds[1] // 2}
    grid = ops.Cells(x.shape[0]), ops.Cells(node.attrs["heads"], heads)
    lanes = threads_of(target, node.attrs["head_dim"])
    return ops.Build((ops.Launch(one_token_per_program, arrays, grid, constants, lanes=lanes),))


def _sample(heads: int, head_dim: int, columns: int, dtype: DType = f32, **attrs: float) -> ops.Sample:
    rng = np.random.default_rng(head_dim)
    x, w = (rng.normal(size=s).astype(dtype.numpy) for s in ((5, heads * head_dim), head_dim))
    given = {"heads": heads, "head_dim": head_dim, "eps": 1e-6, **attrs}
    positions = rng.integers(0, 40, 5).astype(np.int32)
    arrays = x, w, positions, rope_table(40, columns, 1e4)
    return ops.Sample(f"{heads} heads of {head_dim}, {columns} rotary, {dtype.name}", arrays, given)


def _samples() -> Iterable[ops.Sample]:
    yield _sample(2, 64, 64)
    yield _sample(3, 34, 30, offset=1.0)
    yield _sample(1, 2, 2)
    yield _sample(2, 66, 66, f16)
    yield _sample(2, 66, 66, bf16)
    yield partly_active(_sample(2, 64, 64), 3, fixed=(1, 3))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, w = TensorSpec((3, 128), f32), TensorSpec((64,), f32)
    positions, table = TensorSpec((3,), i32), TensorSpec((40, 64), f32)
    attrs = {"heads": 2, "head_dim": 64, "eps": 1e-6}
    yield ops.ErrorSample((x, w, positions), attrs, "wanted x ")
    yield ops.ErrorSample((x, positions, positions, table), attrs, r"wanted w of f32\[64\]")
    yield ops.ErrorSample((x, w, positions, table), attrs | {"heads": 3}, "wanted x of f32")
    yield ops.ErrorSample((x, w, positions, table), attrs | {"eps": 0.0}, "wanted eps above 0")


OP = ops.Op(
    name="head_norm_rope",
    formula="rope with NeoX pairs of y[h] = x[h] / sqrt(mean(x[h]^2) + eps) * (w + offset), h a head",
    parameters=Parameters("x w positions table", (HEADS, HEAD_DIM, EPS, OFFSET)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_token_per_program", ops.EVERYWHERE, _build),),
    indexes={2: lambda node: node.inputs[3].bounds[0]},
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TOLERANCE,
    flops=lambda node: 7.0 * np.prod(node.inputs[0].bounds),
    decompose=_decompose,
)

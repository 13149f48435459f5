"""rope: rotary position embedding, (a, b) -> (a cos - b sin, a sin + b cos) for the pairs of each head, at explicit positions.

"interleaved" pairs are columns 2i and 2i + 1 (llama.cpp's NORM), "neox" pairs are i and i + rotary_dim / 2. Columns from
rotary_dim on are copied. table.py makes the table of cosines and sines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32, i64
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.parameters import HEAD_DIM, HEADS, Attribute, Parameters
from camshaft.ops.rope.table import RopeScaling, rope_table
from camshaft.ops.spec import TensorSpec

__all__ = ["OP", "RopeScaling", "rope_table"]

PAIRINGS = ("interleaved", "neox")


@kernel
def rotate(
    k: Tracer,
    x: Array,
    positions: Array,
    table: Array,
    out: Array,
    *,
    heads: int,
    head_dim: int,
    rotary_dim: int,
    interleaved: bool,
) -> None:
    # out[a] = x[a] cos_i - x[b] sin_i; out[b] = x[a] sin_i + x[b] cos_i for the columns a, b of pair i
    token, half = k.program(0), rotary_dim // 2
    position = positions[token].to(i64)
    for head in k.range(heads):
        first = head * head_dim
        for i in k.lanes(half):
            if interleaved:
                a, b = k.gather(x, token, first + 2 * i), k.gather(x, token, first + 2 * i + 1)
            else:
                a, b = x[token, first + i], x[token, first + half + i]
            cos, sin = table[position, i], table[position, half + i]
            if interleaved:
                k.scatter(out, a * cos - b * sin, token, first + 2 * i)
                k.scatter(out, a * sin + b * cos, token, first + 2 * i + 1)
            else:
                out[token, first + i] = a * cos - b * sin
                out[token, first + half + i] = a * sin + b * cos
        if rotary_dim < head_dim:
            for i in k.lanes(rotary_dim, head_dim):
                out[token, first + i] = x[token, first + i]


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, "rope", specs, "x [T, heads * head_dim], positions [T], table [context, rotary_dim]")
    x, positions, table = specs
    heads, head_dim = attrs.get("heads", 0), attrs.get("head_dim", 0)
    ops.expect(heads > 0 and head_dim > 0, "rope", (heads, head_dim), "heads and head_dim above 0")
    good = x.is_plain and x.dtype == f32 and len(x.shape) == 2 and x.shape[1] == heads * head_dim
    ops.expect(good, "rope", x, f"x of f32 [T, {heads * head_dim}]")
    good = positions.is_plain and positions.dtype == i32 and positions.shape == x.shape[:1]
    ops.expect(good, "rope", positions, f"positions of i32 [{x.shape[0]}]")
    good = table.is_plain and table.dtype == f32 and len(table.shape) == 2
    good = good and table.bounds[1] % 2 == 0 and 0 < table.bounds[1] <= head_dim
    ops.expect(good, "rope", table, f"table of f32 [context, rotary_dim], rotary_dim even and at most {head_dim}")
    pairing = attrs.get("pairing")
    ops.expect(pairing in PAIRINGS, "rope", repr(pairing), f"a pairing of {', '.join(PAIRINGS)}")
    return (x,)


def _pairs(n: int, pairing: str) -> tuple[slice, slice]:
    return (slice(0, n, 2), slice(1, n, 2)) if pairing == "interleaved" else (slice(0, n // 2), slice(n // 2, n))


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, positions, table = inputs
    n = table.shape[1]
    out = x.astype(np.float64).reshape(len(x), attrs["heads"], attrs["head_dim"])
    cos, sin = np.split(table.astype(np.float64)[positions][:, None], 2, axis=-1)
    first, second = _pairs(n, attrs["pairing"])
    a, b = out[..., first].copy(), out[..., second].copy()
    out[..., first], out[..., second] = a * cos - b * sin, a * sin + b * cos
    return (out.reshape(x.shape),)


def _decompose(f: Any, x: Any, positions: Any, table: Any, heads: int, head_dim: int, pairing: str) -> Any:
    tokens, n = x.shape[0], table.shape[1]
    angles = f.gather(table, positions).reshape((tokens, 1, n))
    cos, sin = angles[:, :, : n // 2], angles[:, :, n // 2 :]
    given = x.reshape((tokens, heads, head_dim))
    first, second = _pairs(n, pairing)
    a, b = given[:, :, first], given[:, :, second]
    turned = a * cos - b * sin, a * sin + b * cos
    if pairing == "interleaved":
        turned = tuple(t.reshape((tokens, heads, n // 2, 1)) for t in turned)
        made = f.concat(*turned, axis=3).reshape((tokens, heads, n))
    else:
        made = f.concat(*turned, axis=2)
    if n < head_dim:
        made = f.concat(made, given[:, :, n:], axis=2)
    return made.reshape(x.shape)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    x, _, table = node.inputs
    interleaved = node.attrs["pairing"] == "interleaved"
    sizes = {"heads": node.attrs["heads"], "head_dim": node.attrs["head_dim"], "rotary_dim": table.bounds[1]}
    arrays = (ops.read(0), ops.read(1), ops.read(2), ops.write(0))
    # one lane: LLVM turns the strided pairs into shuffles, which are faster than gathers and scatters
    lanes = 1 if interleaved else None
    constants = {**sizes, "interleaved": interleaved}
    return ops.Build((ops.Launch(rotate, arrays, (ops.Cells(x.shape[0]),), constants, lanes=lanes),))


def _sample(pairing: str, heads: int, head_dim: int, rotary_dim: int, n: int) -> ops.Sample:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, heads * head_dim)).astype(np.float32)
    positions = rng.integers(0, 40, n).astype(np.int32)
    attrs = {"heads": heads, "head_dim": head_dim, "pairing": pairing}
    name = f"{pairing}, {n} tokens, {heads} heads of {head_dim}, {rotary_dim} rotary"
    return ops.Sample(name, (x, positions, rope_table(40, rotary_dim, 1e4)), attrs)


def _samples() -> Iterable[ops.Sample]:
    for pairing in PAIRINGS:
        for sizes in ((1, 2, 2, 1), (3, 64, 64, 2), (2, 34, 34, 3), (1, 30, 30, 1), (2, 80, 32, 2), (5, 66, 66, 1)):
            yield _sample(pairing, *sizes)
        full = _sample(pairing, 2, 64, 62, 6)
        yield partly_active(replace(full, name=f"{pairing}, 4 of 6 tokens"), 4, fixed=(2,))


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, positions, table = TensorSpec((3, 128), f32), TensorSpec((3,), i32), TensorSpec((40, 64), f32)
    attrs = {"heads": 2, "head_dim": 64, "pairing": "neox"}
    yield ops.ErrorSample((x, positions, table), attrs | {"pairing": "diagonal"}, "wanted a pairing")
    yield ops.ErrorSample((x, positions, table), attrs | {"heads": 3}, "wanted x of f32")
    yield ops.ErrorSample((x, TensorSpec((4,), i32), table), attrs, "wanted positions")
    yield ops.ErrorSample((x, positions, TensorSpec((40, 66), f32)), attrs, "wanted table")
    yield ops.ErrorSample((x, positions), attrs, "wanted x")


OP = ops.Op(
    name="rope",
    formula="(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[position]",
    parameters=Parameters("x positions table", (HEADS, HEAD_DIM, Attribute("pairing", "str"))),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_token_per_program", ops.EVERYWHERE, _build),),
    indexes={1: lambda node: node.inputs[2].bounds[0]},
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12},
    flops=lambda node: 3.0 * np.prod(node.inputs[0].bounds),
    decompose=_decompose,
    nbytes=lambda node: 2.0 * node.inputs[0].nbytes + 4.0 * node.inputs[0].bounds[0] * (1 + node.inputs[2].bounds[1]),
)

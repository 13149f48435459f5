"""rope: rotary position embedding, (a, b) -> (a cos - b sin, a sin + b cos) for the pairs of each head, at explicit positions.

"interleaved" pairs are columns 2i and 2i + 1 (llama.cpp's NORM), "neox" pairs are i and i + rotary_dim / 2. Columns from
rotary_dim on are copied. `inverse` rotates by the negated angle. A negative position counts from the
table's end, and one that is not a row of the table gives NaN. table.py makes the table of cosines and sines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, i32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.parameters import HEAD_DIM, HEADS, Parameters
from camshaft.ops.rope.decomposition import decomposed, rotated, rotated_back
from camshaft.ops.rope.frame import INVERSE, PAIRING, PAIRINGS, TOLERANCE, Rotation, build, checked, whole_head
from camshaft.ops.rope.table import RopeScaling, rope_table
from camshaft.ops.spec import TensorSpec

__all__ = ["OP", "RopeScaling", "rope_table"]


def _rotation(attrs: ops.Attrs, table: Any) -> Rotation:
    n_pairs = table.shape[1] // 2
    return Rotation(*whole_head(attrs["pairing"], n_pairs), ((0, n_pairs, 0, 0),))


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    x = checked("rope", specs, {"pairing": None, **attrs}, None)
    return (x,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, positions, table = inputs
    return (rotated(_rotation(attrs, table), x, positions[:, None], table, attrs),)


def _decompose(f: Any, x: Any, positions: Any, table: Any, **attrs: Any) -> Any:
    return decomposed(f, _rotation(attrs, table), x, positions.reshape((x.shape[0], 1)), table, attrs)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return build(_rotation(node.attrs, node.inputs[2]), node, target)


def _sample(pairing: str, heads: int, head_dim: int, rotary_dim: int, n: int, dtype: DType = f32) -> ops.Sample:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(n, heads * head_dim)).astype(dtype.numpy)
    positions = rng.integers(0, 40, n).astype(np.int32)
    attrs = {"heads": heads, "head_dim": head_dim, "pairing": pairing}
    name = f"{pairing}, {n} tokens, {heads} heads of {head_dim}, {rotary_dim} rotary"
    return ops.Sample(name, (x, positions, rope_table(40, rotary_dim, 1e4)), attrs)


def _samples() -> Iterable[ops.Sample]:
    for pairing in PAIRINGS:
        for sizes in ((1, 2, 2, 1), (3, 64, 64, 2), (2, 34, 34, 3), (1, 30, 30, 1), (2, 80, 32, 2), (5, 66, 66, 1)):
            yield _sample(pairing, *sizes)
        full = _sample(pairing, 2, 64, 62, 6)
        inverse = _sample(pairing, 2, 34, 34, 3)
        yield replace(inverse, name=f"{pairing}, inverse", attrs={**inverse.attrs, "inverse": True})
        yield partly_active(replace(full, name=f"{pairing}, 4 of 6 tokens"), 4, fixed=(2,))

    for dtype in (f16, bf16):
        sample = _sample("neox", 2, 64, 64, 3, dtype)
        yield replace(sample, name=f"{sample.name}, {dtype.name}")


def _error_samples() -> Iterable[ops.ErrorSample]:
    x, positions, table = TensorSpec((3, 128), f32), TensorSpec((3,), i32), TensorSpec((40, 64), f32)
    attrs = {"heads": 2, "head_dim": 64, "pairing": "neox"}
    yield ops.ErrorSample((x, positions, table), attrs | {"pairing": "diagonal"}, "wanted a pairing")
    yield ops.ErrorSample((x, positions, table), attrs | {"inverse": 2}, "wanted inverse, True or False")
    yield ops.ErrorSample((x, positions, table), attrs | {"heads": 3}, "wanted x of f32")
    yield ops.ErrorSample((x, TensorSpec((4,), i32), table), attrs, "wanted positions")
    yield ops.ErrorSample((x, positions, TensorSpec((40, 66), f32)), attrs, "wanted table")
    yield ops.ErrorSample((x, positions, TensorSpec((40, Extent("pairs", 64)), f32)), attrs, "wanted table")
    yield ops.ErrorSample((x, positions), attrs, "wanted x")


OP = ops.Op(
    name="rope",
    formula="(a, b) -> (a cos - b sin, a sin + b cos), the angle from table[position]",
    parameters=Parameters("x positions table", (HEADS, HEAD_DIM, PAIRING, INVERSE)),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_token_per_program", ops.EVERYWHERE, _build),),
    indexes={1: lambda node: node.inputs[2].bounds[0]},
    samples=_samples,
    error_samples=_error_samples,
    tolerance=TOLERANCE,
    flops=lambda node: 3.0 * np.prod(node.inputs[0].bounds),
    decompose=_decompose,
    vjp=rotated_back("rope"),
    nbytes=lambda node: 2.0 * node.inputs[0].nbytes + 4.0 * node.inputs[0].bounds[0] * (1 + node.inputs[2].bounds[1]),
)

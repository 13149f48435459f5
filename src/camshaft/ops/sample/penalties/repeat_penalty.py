"""repeat_penalty: makes recent tokens less likely: a logit l > 0 becomes l / penalty, else l * penalty (Keskar et al., 2019)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Parameters
from camshaft.ops.sample.penalties.listed import change_listed, expect_listed
from camshaft.ops.spec import TensorSpec


@kernel
def penalize_block(
    k: Tracer,
    logits: Array,
    ids: Array,
    penalty: Array,
    out: Array,
    *,
    columns: int,
    block: int,
    n_ids: int,
) -> None:
    # y[r, c] = l > 0 ? l / penalty[r] : l * penalty[r] where c is one of ids[r], else l; l = logits[r, c]
    factor = penalty[k.program(0)]

    def penalized(_: Value, logit: Value, so_far: Value) -> Value:
        return k.select(logit > 0, logit / factor, logit * factor)

    change_listed(k, logits, ids, out, columns=columns, block=block, listed=(0, n_ids), change=penalized)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 3, "repeat_penalty", specs, "logits [R, n], ids [R, m] and penalty [R]")
    logits, ids, penalty = specs
    expect_listed("repeat_penalty", logits, ids)
    wanted = TensorSpec(logits.shape[:1], f32)
    ops.expect(penalty == wanted, "repeat_penalty", penalty, f"penalty of {wanted}")
    return (logits,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    logits, ids, penalty = inputs
    out = logits.astype(np.float64)
    for row, tokens in enumerate(ids):
        seen = tokens[(tokens >= 0) & (tokens < logits.shape[1])]
        value, factor = logits[row, seen].astype(np.float64), float(penalty[row])
        out[row, seen] = np.where(value > 0, value / factor, value * factor)
    return (out,)


def _decompose(f: Any, logits: Any, ids: Any, penalty: Any) -> Any:
    rows, n = logits.shape
    recent = f.equal(ids.reshape((*ids.shape, 1)), np.arange(n, dtype=np.int32))
    recent = f.equal(f.max(f.cast(recent, to="i32"), axes=1), 1)
    factor = penalty.reshape((rows, 1))
    return f.where(recent, f.where(logits > 0, logits / factor, logits * factor), logits)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits, ids, _ = node.inputs
    columns = logits.bounds[1]
    block = blocks.even_block(columns)
    arrays = (ops.read(0), ops.read(1), ops.read(2), ops.write(0))
    grid = (ops.Cells(logits.shape[0]), ops.Cells(columns, per=block))
    constants = {"columns": columns, "block": block, "n_ids": ids.bounds[1]}
    return ops.Build((ops.Launch(penalize_block, arrays, grid, constants),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(17)
    for rows, n, m in ((1, 1, 1), (3, 15, 4), (2, 17, 17), (3, 2 * blocks.BLOCK + 1, 64)):
        logits = (3 * rng.normal(size=(rows, n))).astype(np.float32)
        ids = np.stack([rng.permutation(n)[:m] for _ in range(rows)]).astype(np.int32)
        ids[:, m // 2 :] = np.where(rng.random((rows, m - m // 2)) < 0.5, -1, ids[:, m // 2 :])
        yield ops.Sample(f"{rows}x{n}, {m} ids", (logits, ids, rng.uniform(0.8, 1.5, rows).astype(np.float32)))
    logits = np.array([[np.nan, np.inf, -np.inf, 0.0, 5.0]], np.float32)
    yield ops.Sample("special", (logits, np.array([[0, 1, 2, 3, 9, -7]], np.int32), np.full(1, 1.25, np.float32)))
    x, ids = rng.normal(size=(16, 33)).astype(np.float32), rng.integers(0, 33, (16, 2)).astype(np.int32)
    yield partly_active(ops.Sample("7 of 16", (x, ids, np.full(16, 1.1, np.float32))), 7, extent="rows")


def _error_samples() -> Iterable[ops.ErrorSample]:
    logits, ids, penalty = TensorSpec((2, 8), f32), TensorSpec((2, 4), i32), TensorSpec((2,), f32)
    yield ops.ErrorSample((logits, ids), {}, "wanted logits")
    yield ops.ErrorSample((logits, TensorSpec((3, 4), i32), penalty), {}, "wanted ids of i32")
    yield ops.ErrorSample((logits, ids, TensorSpec((3,), f32)), {}, "wanted penalty")


OP = ops.Op(
    name="repeat_penalty",
    formula="y = l > 0 ? l / penalty : l * penalty for the tokens in ids, else l",
    parameters=Parameters("logits ids penalty"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-13},
    decompose=_decompose,
)

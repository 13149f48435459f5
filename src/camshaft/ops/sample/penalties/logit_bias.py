"""logit_bias: adds numbers to the logits of listed tokens: -inf removes a token, +inf leaves no other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Parameters
from camshaft.ops.sample.penalties.listed import change_listed, expect_listed
from camshaft.ops.spec import TensorSpec


@kernel
def add_to_block(
    k: Tracer, logits: Array, ids: Array, bias: Array, out: Array, *, columns: int, block: int, n_ids: int
) -> None:
    # y[r, c] = logits[r, c] + sum over j with ids[r, j] = c of bias[r, j]
    row = k.program(0)
    change_listed(
        k,
        logits,
        ids,
        out,
        columns=columns,
        block=block,
        listed=(0, n_ids),
        change=lambda j, _, so_far: so_far + bias[row, j],
    )


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    wanted = "logits [R, n], ids [R, m] and bias [R, m]"
    ops.expect(len(specs) == 3 and not attrs, "logit_bias", (*specs, *attrs), wanted)
    logits, ids, bias = specs
    expect_listed("logit_bias", logits, ids)
    ops.expect(bias == TensorSpec(ids.shape, f32), "logit_bias", bias, f"bias of {TensorSpec(ids.shape, f32)}")
    return (logits,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    logits, ids, bias = inputs
    out = logits.astype(np.float64)
    for row, (tokens, numbers) in enumerate(zip(ids, bias, strict=True)):
        inside = (tokens >= 0) & (tokens < logits.shape[1])
        np.add.at(out[row], tokens[inside], numbers[inside].astype(np.float64))
    return (out,)


def _decompose(f: Any, logits: Any, ids: Any, bias: Any) -> Any:
    chosen = f.equal(ids.reshape((*ids.shape, 1)), np.arange(logits.shape[1], dtype=np.int32))
    return logits + f.sum(f.where(chosen, bias.reshape((*bias.shape, 1)), np.float32(0)), axes=1)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits, ids, _ = node.inputs
    columns = logits.bounds[1]
    block = blocks.even_block(columns)
    grid = ops.Cells(logits.shape[0]), ops.Cells(columns, per=block)
    arrays = ops.read(0), ops.read(1), ops.read(2), ops.write(0)
    constants = {"columns": columns, "block": block, "n_ids": ids.bounds[1]}
    return ops.Build((ops.Launch(add_to_block, arrays, grid, constants),))


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(20)
    for rows, n, m in ((1, 1, 1), (3, 15, 4), (2, 17, 17), (2, 2 * blocks.BLOCK + 1, 64)):
        logits = rng.normal(size=(rows, n)).astype(np.float32)
        ids = rng.integers(-1, n, (rows, m)).astype(np.int32)
        yield ops.Sample(f"{rows}x{n}, {m} ids", (logits, ids, rng.normal(size=(rows, m)).astype(np.float32)))
    ids, bias = np.array([[0, 1, 2, 9, -7, 3]], np.int32), np.array([[-np.inf, 1, np.inf, 5, 5, np.nan]], np.float32)
    yield ops.Sample("infinities", (np.ones((1, 5), np.float32), ids, bias))
    x, ids = rng.normal(size=(16, 33)).astype(np.float32), rng.integers(0, 33, (16, 2)).astype(np.int32)
    yield partly_active(ops.Sample("7 of 16", (x, ids, np.ones((16, 2), np.float32))), 7, extent="rows")


def _error_samples() -> Iterable[ops.ErrorSample]:
    logits, ids = TensorSpec((2, 8), f32), TensorSpec((2, 4), i32)
    yield ops.ErrorSample((logits, ids), {}, "wanted logits")
    yield ops.ErrorSample((logits, TensorSpec((3, 4), i32), TensorSpec((3, 4), f32)), {}, "wanted ids of i32")
    yield ops.ErrorSample((logits, ids, TensorSpec((2, 3), f32)), {}, "wanted bias of")


OP = ops.Op(
    name="logit_bias",
    formula="y = logits + the bias of the tokens in ids",
    parameters=Parameters("logits ids bias"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-13},
    decompose=_decompose,
)

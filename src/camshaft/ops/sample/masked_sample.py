"""masked_sample: as sample, of the tokens whose bit of a mask is 1, as grammars give it.

A token_mask before sample would write all logits again: 30 us of 49152 after a pass of the model, in which the draw takes 45.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import as_dtype, i32, u32
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.gradient import OF_INTEGERS
from camshaft.ops.parameters import Parameters
from camshaft.ops.sample import sample
from camshaft.ops.sample.filters.filters import OPS as FILTERS
from camshaft.ops.sample.kept import WORD
from camshaft.ops.sample.kernel import one_masked_row_per_program
from camshaft.ops.spec import TensorSpec

MASKS = (0x8421F00F, 0xFFFFFFFF, 0, 0x80000001)  # words, in turn


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 7, "masked_sample", specs, "logits, mask, temperature, top_k, top_p, min_p and seed")
    logits, mask, *settings = specs
    x = sample.expect_inputs("masked_sample", (logits, *settings))
    right = TensorSpec((x.shape[0], -(-x.bounds[1] // WORD)), u32)
    ops.expect(mask == right, "masked_sample", mask, f"mask of {right}")
    return (TensorSpec(x.shape[:1], i32),)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return sample.launched(one_masked_row_per_program, node)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    logits, mask, *settings = inputs
    (kept,) = FILTERS["token_mask"].reference((logits, mask), {})
    return sample.OP.reference((kept, *settings), attrs)


def _decompose(f: Any, logits: Any, mask: Any, *settings: Any) -> Any:
    return f.sample(f.token_mask(logits, mask), *settings)


def _inputs(logits: ops.Array) -> tuple[ops.Array, ...]:
    rows, n = logits.shape
    which = np.add.outer(np.arange(rows), np.arange(-(-n // WORD))) % len(MASKS)
    x, *settings = sample.row_inputs(logits, sample.SETTINGS)
    return (x, np.array(MASKS, np.uint32)[which], *settings)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(17)
    for rows, n in ((8, 1), (16, 31), (16, 33), (16, 64), (16, 129), (8, 4099)):
        yield ops.Sample(f"{rows}x{n}", _inputs((3 * rng.normal(size=(rows, n))).astype(np.float32)))
    yield ops.Sample("ties", _inputs(rng.integers(0, 3, (24, 200)).astype(np.float32)))
    odd = rng.normal(size=(16, 70)).astype(np.float32)
    odd[:, 1::4], odd[8:, 20] = -np.inf, 1e30
    odd[4:8, 63], odd[12, 0], odd[13] = np.nan, np.nan, np.nan
    yield ops.Sample("NaN and infinities", _inputs(odd))
    x = rng.normal(size=(16, 33)).astype(np.float32)
    yield partly_active(ops.Sample("7 of 16", _inputs(x)), 7, extent="rows")


def _error_samples() -> Iterable[ops.ErrorSample]:
    rows = sample.row_inputs(np.zeros((2, 40), np.float32), sample.SETTINGS)
    logits, *settings = (TensorSpec(a.shape, as_dtype(a.dtype)) for a in rows)
    yield ops.ErrorSample((logits, *settings), {}, "wanted logits, mask")
    yield ops.ErrorSample((logits, TensorSpec((2, 1), u32), *settings), {}, "wanted mask of")
    yield ops.ErrorSample((TensorSpec((2, 40), u32), TensorSpec((2, 2), u32), *settings), {}, "wanted logits of f32")


OP = ops.Op(
    name="masked_sample",
    vjp=OF_INTEGERS,
    formula="as sample, of the tokens i whose bit i % 32 of word i // 32 of the mask is 1",
    parameters=Parameters("logits mask temperature top_k top_p min_p seed"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("one_masked_row_per_program", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={},
    flops=lambda node: 60.0 * np.prod(node.inputs[0].bounds),
    decompose=_decompose,
)

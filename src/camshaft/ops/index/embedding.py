"""embedding: y[t] = table[ids[t]]; a plain table as for gather, or one packed in a block format as for quantized_matmul.

A plain table's rows are moved bit for bit, or with to="f32" widened; those of a packed one become f32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from camshaft.dtypes import DTYPES, DType, as_dtype, bf16, f16, f32, i32
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.lang import Array, Constant, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY
from camshaft.ops.index.gather import expect_indexes, gathered, index_of, taken
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.quantized.dequantize import number_at
from camshaft.ops.quantized.packed.packing import INTERLEAVED, interleaved, pack, packed_format
from camshaft.ops.quantized.packed.weights import packed, weight_operands
from camshaft.ops.spec import TensorSpec

NAN = float("nan")


@kernel
def interleaved_row(
    k: Tracer,
    ids: Array,
    codes: Array,
    scales: Array,
    extra: Array,
    out: Array,
    *,
    rows: int,
    dim: int,
    block: str,
) -> None:
    # out[t, c] = number_at(ids[t], c)
    t = k.program(0)
    row, inside = index_of(k, ids[t], rows)
    row = k.minimum(k.maximum(row, 0), rows - 1)
    weights = packed(k, codes, scales, extra, block)
    for c in k.lanes(dim):
        out[t, c] = k.select(inside, number_at(k, weights, row, c), NAN)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "embedding", specs, "ids [..] and table [n, ..]")
    ids, table = specs
    expect_indexes("embedding", "ids", ids)
    is_packed = isinstance(table.dtype, BlockFormat)
    good = len(table.shape) == 2 if is_packed else table.is_plain and len(table.shape) > 0 and table.dtype in EVERY
    fixed = 0 not in table.bounds and not any(isinstance(d, Extent) for d in table.shape)
    ops.expect(good and fixed, "embedding", table, "a table [n, ..] without empty axes, or [n, d] of a block format")
    if is_packed:
        packed_format(table)
        ops.expect(len(ids.shape) == 1, "embedding", ids, "ids [T] for a table in a block format")
    kept = f32 if is_packed else as_dtype(table.dtype)
    to = attrs.get("to") or kept.name
    ops.expect(to == kept.name or (to == f32.name and kept.is_float), "embedding", f"to {to!r}", "to f32, of floats")
    return (TensorSpec((*ids.shape, *table.shape[1:]), DTYPES[to]),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    ids, table = inputs
    found = taken(np.asarray(attrs.get("values", table)), ids)
    return (found.astype(np.float64) if attrs.get("to") else found,)


def _decompose(f: Any, ids: Any, table: Any, to: str | None = None) -> Any:
    """Rows of the whole table, as f32 if it is packed."""
    rows = f.gather(f.dequantize(table) if isinstance(table.dtype, BlockFormat) else table, ids)
    return rows if to in (None, rows.dtype.name) else f.cast(rows, to=to)


def _build_plain(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    return gathered(node, 1, 0)


def _build_interleaved(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    ids, table = node.inputs
    constants: dict[str, Constant] = {"rows": table.bounds[0], "dim": table.bounds[1], "block": table.dtype.name}
    arrays = (ops.read(0), *weight_operands(node), ops.write(0))
    return ops.Build((ops.Launch(interleaved_row, arrays, (ops.Cells(ids.shape[0]),), constants),))


def _plain_table(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return None if isinstance(node.inputs[1].dtype, DType) else "the table is in a block format"


def _packed_table(node: ops.NodeSpec, target: ops.Target) -> str | None:
    return None if node.inputs[1].layout is INTERLEAVED else "the table is not packed"


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(5)
    tokens = Extent("T", 5)
    for dtype, dim, to in ((f32, 1, None), (f16, 17, "f32"), (bf16, 64, "f32"), (f16, 35, None)):
        table = rng.normal(size=(19, dim)).astype(dtype.numpy)
        ids = np.array([0, 18, -16, 3, 7], np.int32)
        specs = (TensorSpec((tokens,), i32), TensorSpec((19, dim), dtype))
        yield ops.Sample(f"{dtype} {dim}", (ids, table), {"to": to} if to else {}, specs, {tokens: 4})
    for name in (
        "Q4_0",
        "Q4_1",
        "Q8_0",
        "Q5_0",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q6_K",
        "IQ4_XS",
        "MXFP4",
        "IQ1_S",
        "IQ2_XS",
        "NVFP4",
    ):
        block = BLOCK_FORMATS[name]
        n, dim = 21, 2 * max(block.block_size, 48 // 32 * 32)
        yield _packed_sample(name, n, dim)


def _packed_sample(name: str, n: int, dim: int) -> ops.Sample:
    from camshaft.ops.quantized.samples import LazySample, random_blocks  # only validation needs samples

    block, ids = BLOCK_FORMATS[name], np.array([0, 20, 16, 15, 5], np.int32)
    raw, spec = random_blocks(name, n, dim, seed=4), interleaved(TensorSpec((n, dim), block))

    def inputs() -> tuple[ops.Array, ...]:
        packed = np.zeros(spec.nbytes, np.uint8)
        pack(raw, spec, packed)
        return ids, packed

    values = block.dequantize(raw.reshape(-1, block.block_nbytes)).reshape(n, dim)
    return LazySample(name, inputs, {"values": values}, (TensorSpec((5,), i32), spec))


def _error_samples() -> Iterable[ops.ErrorSample]:
    ids = TensorSpec((2,), i32)
    yield ops.ErrorSample((TensorSpec((2,), f32), TensorSpec((4, 8), f32)), {}, "ids of i32")
    yield ops.ErrorSample((ids, TensorSpec((), f32)), {}, r"a table \[n, ..\]")
    yield ops.ErrorSample((ids, TensorSpec((8,), f32)), {"to": "f16"}, "wanted to f32, of floats")


_BOTH = ops.EVERYWHERE
OP = ops.Op(
    name="embedding",
    formula="y[t] = table[ids[t]]",
    parameters=Parameters("ids table", (Attribute("to", "str | None", None),)),
    infer=_infer,
    reference=_reference,
    variants=(
        ops.KernelVariant("plain_row", _BOTH, _build_plain, _plain_table),
        ops.KernelVariant("interleaved_row", _BOTH, _build_interleaved, _packed_table),
    ),
    indexes={0: lambda node: node.inputs[1].bounds[0]},
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-14, "f64": 0.0},
    nbytes=lambda node: float(
        sum(s.nbytes for s in node.outputs)
        + node.inputs[1].nbytes * prod(node.inputs[0].bounds) / node.inputs[1].bounds[0]
    ),
    decompose=_decompose,
)

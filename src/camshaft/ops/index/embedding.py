"""embedding: y[t] = table[ids[t]]; the table is f32, f16, bf16 or packed in a block format as for quantized_matmul."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, i32, i64
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS, BlockFormat
from camshaft.lang import Array, Constant, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.parameters import Parameters
from camshaft.ops.quantized.dequantize import number_at
from camshaft.ops.quantized.operands import packed, weight_operands
from camshaft.ops.quantized.packing import INTERLEAVED, interleaved, pack, packed_format
from camshaft.ops.spec import TensorSpec

NAN = float("nan")


def _row(k: Tracer, wanted: Value, rows: int) -> tuple[Value, Value]:
    """The row clamped to the table, and whether it was in bounds: an id out of bounds gives NaN."""
    return k.minimum(k.maximum(wanted, 0), rows - 1), (wanted >= 0) & (wanted < rows)


@kernel
def plain_row(k: Tracer, ids: Array, table: Array, out: Array, *, rows: int, dim: int) -> None:
    t = k.program(0)
    row, inside = _row(k, ids[t].to(i64), rows)
    for c in k.lanes(dim):
        out[t, c] = k.select(inside, table[row, c], NAN)


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
    row, inside = _row(k, ids[t].to(i64), rows)
    weights = packed(k, codes, scales, extra, block)
    for c in k.lanes(dim):
        out[t, c] = k.select(inside, number_at(k, weights, row, c), NAN)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 2, "embedding", specs, "ids [T] and table [n, d]")
    ids, table = specs
    ops.expect(ids.is_plain and ids.dtype == i32 and len(ids.shape) == 1, "embedding", ids, "ids of i32 [T]")
    good = len(table.shape) == 2 and (isinstance(table.dtype, BlockFormat) or table.dtype in (f32, f16, bf16))
    ops.expect(good, "embedding", table, "a table [n, d] of f32, f16, bf16 or a block format")
    if isinstance(table.dtype, BlockFormat):
        packed_format(table)
    return (TensorSpec((ids.shape[0], table.shape[1]), f32),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    ids, table = inputs
    return (attrs.get("values", table).astype(np.float64)[ids],)


def _decompose(f: Any, ids: Any, table: Any) -> Any:
    """Rows of the whole table as f32."""
    if isinstance(table.dtype, BlockFormat):
        return f.gather(f.dequantize(table), ids)
    return f.gather(table if table.dtype == f32 else f.cast(table, to="f32"), ids)


def _build_plain(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    ids, table = node.inputs
    arrays = (ops.read(0), ops.read(1), ops.write(0))
    constants: dict[str, Constant] = {"rows": table.bounds[0], "dim": table.bounds[1]}
    return ops.Build((ops.Launch(plain_row, arrays, (ops.Cells(ids.shape[0]),), constants, sizes=("rows", "dim")),))


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
    for dtype, dim in ((f32, 1), (f16, 17), (bf16, 64), (f32, 35)):
        table = rng.normal(size=(19, dim)).astype(dtype.numpy)
        ids = np.array([0, 18, 3, 3, 7], np.int32)
        specs = (TensorSpec((tokens,), i32), TensorSpec((19, dim), dtype))
        yield ops.Sample(f"{dtype} {dim}", (ids, table), specs=specs, extents={tokens: 4})
    for name in ("Q4_0", "Q4_1", "Q8_0", "Q5_0", "Q2_K", "Q3_K", "Q4_K", "Q6_K", "IQ4_XS", "MXFP4"):
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
    yield ops.ErrorSample((ids, TensorSpec((8,), f32)), {}, r"a table \[n, d\]")


_BOTH = ops.EVERYWHERE
OP = ops.Op(
    name="embedding",
    formula="y[t] = table[ids[t]]",
    parameters=Parameters("ids table"),
    infer=_infer,
    reference=_reference,
    variants=(
        ops.KernelVariant("plain_row", _BOTH, _build_plain, _plain_table),
        ops.KernelVariant("interleaved_row", _BOTH, _build_interleaved, _packed_table),
    ),
    indexes={0: lambda node: node.inputs[1].bounds[0]},
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-14},
    nbytes=lambda node: float(
        sum(s.nbytes for s in node.outputs)
        + node.inputs[1].nbytes * node.inputs[0].bounds[0] / node.inputs[1].bounds[0]
    ),
    decompose=_decompose,
)

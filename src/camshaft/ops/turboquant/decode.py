"""turboquant_decode: rows of packed codes and norms as f32, still rotated or undone (codes.py)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any

import numpy as np

from camshaft.dtypes import f32, u8
from camshaft.extent import Extent
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.parameters import Parameters
from camshaft.ops.spec import TensorSpec
from camshaft.ops.turboquant.codes import (
    GROUP,
    bits_of,
    code,
    decode,
    encode,
    rows_as_matrix,
    rows_samples,
    wrong_tables,
)
from camshaft.ops.turboquant.hadamard import check_signs, is_power_of_two, transform, transformed

DECODE = "turboquant_decode"


@kernel
def decode_row(
    k: Tracer, packed: Array, norms: Array, table: Array, *others: Any, bits: int, dim: int, n_signs: int
) -> None:
    # y = centroid[code] norm / sqrt(d); x = s (H y) / sqrt(d)
    row, signs, out = k.program(0), others[:n_signs], others[n_signs]
    scale, last = norms[row] * (1.0 / sqrt(dim)), int(packed.shape[1]) - 1
    buffer = k.scratch(f32, dim)
    for c in k.lanes(dim):
        first = c * bits
        low, high = k.gather(packed, row, first // 8), k.gather(packed, row, k.minimum(first // 8 + 1, last))
        buffer[c] = k.gather(table, code(k, low, high, first % 8, bits)) * scale
    k.barrier()
    if signs:
        transform(k, buffer, dim)
    for c in k.lanes(dim):
        out[row, c] = buffer[c] * (1.0 / sqrt(dim)) * signs[0][c] if signs else buffer[c]


def _infer_decode(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) in (3, 4), DECODE, specs, "codes, norms, centroids, or these and signs")
    packed, norms, table, *signs = specs
    bits = bits_of(DECODE, table)
    good = packed.is_plain and packed.dtype == u8 and len(packed.shape) >= 1 and 0 not in packed.bounds
    good = good and not any(isinstance(n, Extent) for n in (*packed.shape[1:], packed.shape[-1]))
    ops.expect(good, DECODE, packed, "codes of u8 [.., bytes] with no empty axis, an Extent only first")
    n_bytes = packed.bounds[-1]
    d = n_bytes * 8 // bits
    good = d * bits == n_bytes * 8 and is_power_of_two(d)
    ops.expect(good, DECODE, packed, f"rows of d {bits} / 8 bytes, d a power of two of at least 8")
    ops.expect(norms == TensorSpec(packed.shape[:-1], f32), DECODE, norms, "norms of f32, one for each row of codes")
    check_signs(DECODE, signs, d)
    return (TensorSpec((*packed.shape[:-1], d), f32),)


def _decode_reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    packed, norms, table, *signs = inputs
    y = decode(packed, norms, table)
    return (transformed(y) * signs[0] if signs else y,)


def _build_decode(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    packed, d = node.inputs[0], node.outputs[0].bounds[-1]
    flat, cells = rows_as_matrix(packed, packed.bounds[-1])
    signs = [ops.read(3)] if len(node.inputs) > 3 else []
    arrays = ops.read(0, shape=flat), ops.read(1, shape=flat[:1]), ops.read(2), *signs, ops.write(0, shape=(flat[0], d))
    constants = {"bits": bits_of(DECODE, node.inputs[2]), "dim": d, "n_signs": len(signs)}
    return ops.Build((ops.Launch(decode_row, arrays, (cells,), constants),))


def _decode_parts(f: Any, packed: Any, norms: Any, table: Any, *signs: Any) -> Any:
    bits, outer = table.shape[0].bit_length() - 1, packed.shape[:-1]
    d = packed.shape[-1] * 8 // bits
    wide = f.cast(packed, to="i32").reshape((*outer, d // GROUP, bits))
    found = f.concat(*(_code_of_group(f, wide, i, bits) for i in range(GROUP)), axis=len(outer) + 1)
    y = _looked_up(f, table, found.reshape((*outer, d))) * (norms.reshape((*outer, 1)) * (1 / sqrt(d)))
    return f.hadamard(y, *signs, signs_after=True) if signs else y


def _looked_up(f: Any, table: Any, found: Any) -> Any:
    """table[found]. gather takes no Extent among several axes: there every centroid is compared."""
    if not isinstance(found.shape[0], Extent):
        return f.gather(table, found)
    same = f.equal(found.reshape((*found.shape, 1)), np.arange(table.shape[0], dtype=np.int32))
    return f.sum(f.where(same, table, 0.0), axes=-1)


def _code_of_group(f: Any, wide: Any, i: int, bits: int) -> Any:
    """Code i of each group of 8, from one byte or two."""
    b, first = divmod(i * bits, 8)
    word = wide[..., b : b + 1]
    if first + bits > 8:
        word = word + wide[..., b + 1 : b + 2] * np.int32(256)
    return f.remainder(f.floor_divide(word, np.int32(1 << first)), np.int32(1 << bits))


def _samples() -> Iterable[ops.Sample]:
    for i, given in enumerate(rows_samples()):
        x, signs, table = given.inputs
        packed, norms = encode(x, signs, table)
        inputs = packed, norms.astype(np.float32), table, *([signs] if i % 2 == 0 else [])
        sample = ops.Sample(given.name, inputs)
        yield partly_active(sample, 3, fixed=(2, 3)) if given.extents else sample


def _error_samples() -> Iterable[ops.ErrorSample]:
    packed, norms, table = TensorSpec((2, 8), u8), TensorSpec((2,), f32), TensorSpec((16,), f32)
    for specs, match in wrong_tables(packed, norms):
        yield ops.ErrorSample(specs, {}, match)
    yield ops.ErrorSample((TensorSpec((2, 7), u8), norms, table), {}, "wanted rows of d 4 / 8 bytes")
    yield ops.ErrorSample((packed, packed, table), {}, "wanted norms")


OP = ops.Op(
    name=DECODE,
    formula="y = centroid[code] norm / sqrt(d), still rotated; with signs x = s (H y) / sqrt(d)",
    parameters=Parameters("codes norms centroids *signs"),
    infer=_infer_decode,
    reference=_decode_reference,
    variants=(ops.KernelVariant("decode_row", ops.EVERYWHERE, _build_decode),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-12},
    decompose=_decode_parts,
)

"""When a result is written around the caches, and the row after asked for: of rows and chains that no cache holds on a CPU.

An ordinary store reads the line that it overwrites, so that a result costs its bytes twice; and while a row in the first cache
is computed, memory has nothing to do. 1024 x 4096 f32 on one thread of Zen 4, microseconds: rms_norm 1815, streamed 1583, with
the next row asked for 1306; layer_norm 2348, 1810, 1570; softmax 1871, 2300, 1578. On two: 1544, 1140, 1038; 1709, 1240, 1137;
1246, 1504, 1174. At 8 MB in all streaming costs a quarter: there the caches hold what is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from camshaft.dtypes import bf16, f16, f32
from camshaft.lang import ir
from camshaft.lang.tracing.tracer import Array, Tracer
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

_DTYPES = {dtype.name: dtype for dtype in (f32, f16, bf16)}
# Beside y unrounded: a step's square over 12, where a power of two begins and steps are widest; a tenth more for chance.
TOLERANCE = {"f32": 1e-12, "f16": 1.1 * 2.0**-20 / 12, "bf16": 1.1 * 2.0**-14 / 12}


def result(op: str, y: TensorSpec, attrs: Mapping[str, Any]) -> TensorSpec:
    """y as the attributes ask for it. ShapeError for another dtype."""
    name = attrs.get("to", "f32")
    ops.expect(name in _DTYPES, op, f"to {name!r}", "to f32, f16 or bf16")
    return TensorSpec(y.shape, _DTYPES[name])


# Operands and results together: three quarters of the last cache of the machine above.
LEAST_NBYTES = 24 << 20
# f32 of a row that a program holds on its stack until it knows what to write.
MOST_HELD = 16384
# Elements of a cache line of f32, and lines that a step of a row takes at most: more lanes are not in use.
_LINE, _STEP = 16, 64


def pays(node: ops.NodeSpec, target: ops.Target) -> bool:
    """Whether the node's results are to be streamed. A size known by its bound alone may be small when it runs."""
    specs = (*node.inputs, *node.outputs)
    known = all(isinstance(d, int) for spec in specs for d in spec.shape)
    return target.backend == "simd" and known and sum(spec.nbytes for spec in specs) >= LEAST_NBYTES


def next_row(k: Tracer, x: Array, row: ir.Value, column: ir.Value) -> None:
    """Asks for what lies below these columns."""
    for i in range(0, _STEP, _LINE):
        k.prefetch(x, row + 1, column + i)


def put(k: Tracer, out: Array, value: ir.Value, row: ir.Value, column: ir.Value, streams: bool) -> None:
    """out[row, column] = value, around the caches or as ever."""
    k.store(out, (row, column), value, streamed=streams)

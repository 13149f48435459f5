"""attention_gradient on GPUs: products of whole matrices, with P and dS in the device's memory.

S = q K^T and dP = dy V^T, then P and dS of each element, then dq = dS K, dk = dS^T q, dv = P^T dy. The heads of a group of k are
rows of one matrix, so the sums over them are part of a product. Takes 4 matrices of queries x keys per head; `tiles`, which keeps
none, is for longer ones.
"""

from __future__ import annotations

from dataclasses import replace

from camshaft.dtypes import f32
from camshaft.lang import Array, Constant, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import without_threads, workgroup_nbytes
from camshaft.ops.masked.gradient.kernels import Span, mask_place
from camshaft.ops.matmul import tile
from camshaft.ops.matmul.shapes import Sizes
from camshaft.ops.spec import TensorSpec

TILE, PITCH = 32, 33
# Bytes of the four matrices, which are also at most a quarter of a device's memory; a plan gives those of one layer to the next.
MOST_NBYTES = 4 << 30
SCORES, OF_SCORES, WEIGHTS_TURNED, OF_SCORES_TURNED = range(4)


@kernel
def weigh(
    k: Tracer, scores: Array, of_scores: Array, sums: Array, delta: Array, *rest: Array, heads: int, queries: int, masked: bool,
    causal: bool, window: int, chunk: int, offset: int, scale: float,
) -> None:  # fmt: skip
    # P = exp(scale S - lse); dS = scale P (dP - delta), in place of dP; P^T and dS^T
    mask = rest[0] if masked else None
    matrix, first_row, first_key = k.program(0), k.program(1) * TILE, k.program(2) * TILE
    _, rows, keys = (int(n) for n in scores.shape)
    span = Span(causal, window, chunk, offset, keys)
    found = [k.scratch(f32, TILE, PITCH) for _ in rest[masked:]]
    for element in k.lanes(TILE * TILE):
        row, key = first_row + element // TILE, first_key + element % TILE
        with k.when((row < rows) & (key < keys)):
            at, query = matrix * rows + row, row % queries
            start, end = span.of(k, query)
            seen = (key >= start) & (key < end)
            if mask is not None:
                seen = seen & k.gather(mask, *mask_place(k, mask, at // queries, heads, query), key)
            power = k.exp(k.gather(scores, matrix, row, key) * scale - k.gather(sums, at))
            p = k.select(seen, power, 0.0)
            ds = p * (k.gather(of_scores, matrix, row, key) - k.gather(delta, at)) * scale
            ds = k.select(p == 0.0, 0.0, ds)
            k.scatter(of_scores, ds, matrix, row, key)
            for to, value in zip(found, (p, ds), strict=True):
                k.scatter(to, value, element // TILE, element % TILE)
    k.barrier()
    for element in k.lanes(TILE * TILE):
        key, row = first_key + element // TILE, first_row + element % TILE
        with k.when((row < rows) & (key < keys)):
            for to, values in zip(rest[masked:], found, strict=True):
                k.scatter(to, k.gather(values, element % TILE, element // TILE), matrix, key, row)


def supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    if (reason := without_threads(target)) is not None:
        return reason
    if workgroup_nbytes(target) < tile.LEAST_NBYTES:
        return f"wants {tile.LEAST_NBYTES} bytes of workgroup memory; got {workgroup_nbytes(target)}"
    each = _matrix(node).nbytes
    if each > (most := target.limits.get("binding", each)):
        return f"matrices of scores of {each} bytes; a kernel takes arrays of at most {most}"
    most = min(MOST_NBYTES, target.limits.get("memory", 4 * MOST_NBYTES) // 4)
    return f"matrices of {4 * each} bytes; wanted at most {most}" if 4 * each > most else None


def _matrix(node: ops.NodeSpec) -> TensorSpec:
    """The scores: rows of all heads of a group as one matrix."""
    (batch, heads, queries, _), (_, kv_heads, keys, _) = node.inputs[0].bounds, node.inputs[1].bounds
    return TensorSpec((batch * kv_heads, heads // kv_heads * queries, keys), f32)


def build(node: ops.NodeSpec, target: ops.Target, options: dict[str, Constant]) -> ops.Build:
    """Builds the five products and, after two of them, the weights. `options` are those of `weigh` that attributes give."""
    (batch, heads, queries, size), v_size = node.inputs[0].bounds, node.inputs[2].bounds[3]
    spec = _matrix(node)
    n, rows, keys = spec.bounds
    turned = TensorSpec((n, keys, rows), f32)

    def product(m: int, columns: int, depth: int, transposed: bool, *operands: ops.Operand) -> ops.Launch:
        sizes = Sizes(m, columns, depth, transposed, (n,), (1,), (1,), n, n)
        b = (n * columns, depth) if transposed else (n * depth, columns)
        shapes = (n * m, depth), b, (n * m, columns)
        seen = tuple(replace(x, shape=shape) for x, shape in zip(operands, shapes, strict=True))
        return tile.launch_of(sizes, seen, {**tile.default_values(sizes, False, target), "slices": 1})

    arrays = (
        ops.scratch(SCORES, "read"),
        ops.scratch(OF_SCORES, "update"),
        *(ops.read(i, shape=(batch * heads * queries,)) for i in (4, 5)),
        *(ops.read(i) for i in range(6, len(node.inputs))),
        ops.scratch(WEIGHTS_TURNED, "write"),
        ops.scratch(OF_SCORES_TURNED, "write"),
    )
    given: dict[str, Constant] = {"heads": heads, "queries": queries, "masked": len(node.inputs) > 6, **options}
    grid = ops.Cells(n), ops.Cells(rows, TILE), ops.Cells(keys, TILE)
    launches = (
        product(rows, keys, size, True, ops.read(0), ops.read(1), ops.scratch(SCORES, "write")),
        product(rows, keys, v_size, True, ops.read(3), ops.read(2), ops.scratch(OF_SCORES, "write")),
        ops.Launch(weigh, arrays, grid, given),
        product(rows, size, keys, False, ops.scratch(OF_SCORES, "read"), ops.read(1), ops.write(0)),
        product(keys, size, rows, False, ops.scratch(OF_SCORES_TURNED, "read"), ops.read(0), ops.write(1)),
        product(keys, v_size, rows, False, ops.scratch(WEIGHTS_TURNED, "read"), ops.read(3), ops.write(2)),
    )
    return ops.Build(launches, (spec, spec, turned, turned))

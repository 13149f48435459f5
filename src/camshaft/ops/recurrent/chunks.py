"""The gated delta rule and gated linear attention in chunks of 64 tokens, a head per program.

Per chunk, with G the summed log decays: B = (k k.T) exp(G_i - G_j) below the diagonal; (I + B beta) t = v - exp(G) (k h); v' =
beta t; o = exp(G) (q h) + tril(q k.T exp(G_i - G_j)) v'; h = exp(G_last) h + k.T (exp(G_last - G) v'). All are products of 64
x 64, 64 x K and K x V in register tiles; the system is solved in place, without the inverse. Linear attention has v' = v.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.recurrent.chunk import CHUNK, Chunk
from camshaft.ops.recurrent.state_layout import WIDTH
from camshaft.ops.recurrent.tokens import shape_of

# Fewer tokens are computed token by token: a chunk would be mostly padding.
FEWEST_TOKENS = 24
CPUS = frozenset({"simd", "c"})


@kernel
def head_per_program(
    k: Tracer, q: Array, keys: Array, v: Array, g: Array, *rest: Array,
    tokens: int, groups: int, heads: int, key_size: int, value_size: int,
    scale: float, l2_norm: bool, delta: bool, rows: int, vectors: int,
) -> None:  # fmt: skip
    # chunk by chunk: o and the state after it
    out, state = rest[-2:]
    initial = rest[delta] if len(rest) > 2 + delta else None
    index = k.program(0)
    sequence, head, first = index // heads, index % heads, index * key_size
    chunk = Chunk.of(k, key_size, value_size, delta, rows, vectors)
    for d in k.range(key_size):
        for c in range(0, value_size, WIDTH):
            zeros = k.splat(0.0, WIDTH)
            k.store_vector(
                state, zeros if initial is None else k.load_vector(initial, first + d, c, width=WIDTH), first + d, c
            )
    for begin in k.range(0, tokens, CHUNK):
        active = k.minimum(tokens - begin, CHUNK)

        def places(r: Value, begin: Value = begin) -> tuple[Value, Value]:
            token = sequence * tokens + begin + r
            return token * groups + head // (heads // groups), token * heads + head

        chunk.load(q, keys, places, active, scale, l2_norm)
        chunk.copy(v, chunk.values, value_size, lambda r: places(r)[1], active)
        chunk.gates(g, rest[0] if delta else None, places, active)
        products = [(chunk.queries, chunk.inside, False), (chunk.keys, chunk.system, True)]
        chunk.pairs(products[: 1 + delta], chunk.turned, key_size)
        if delta:
            chunk.subtract(state, first)
            chunk.solve()
        chunk.output(out, state, first, places, active)
        chunk.advance(state, first)


def _supports(node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why the variant does not support the node, or None."""
    shape = shape_of(node)
    keys, values, tokens = shape["key_size"], shape["value_size"], shape["tokens"]
    if keys % 32 or values % 32 or keys > 256 or values > 256:
        return f"wants keys and values of a multiple of 32, at most 256; got {keys} and {values}"
    return f"{tokens} tokens; wants {FEWEST_TOKENS} or more" if tokens < FEWEST_TOKENS else None


def variant(delta: bool, scale_of: Callable[[ops.Attrs, int], float]) -> ops.KernelVariant:
    """The variant of gated_delta_rule (`delta`) or gated_linear_attention."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        shape, n_sequences = shape_of(node), node.outputs[1].bounds[0]
        arrays = []
        for i, spec in enumerate(node.inputs):
            count, last = prod(spec.bounds), spec.bounds[-1]
            arrays.append(ops.read(i, shape=(count,) if len(spec.shape) == 3 else (count // last, last)))
        for i, spec in enumerate(node.outputs):
            arrays.append(ops.write(i, shape=(prod(spec.bounds[:-1]), spec.bounds[-1])))
        tile = {"rows": 8, "vectors": 2} if target.lanes >= WIDTH else {"rows": 4, "vectors": 1}
        own = {"scale": scale_of(node.attrs, shape["key_size"]), "l2_norm": node.attrs.get("l2_norm", False)}
        constants = {**shape, **own, **tile, "delta": delta}
        grid = (ops.Cells(n_sequences * shape["heads"]),)
        return ops.Build((ops.Launch(head_per_program, tuple(arrays), grid, constants),))

    return ops.KernelVariant("chunks", CPUS, build, _supports, _cost)


def _cost(node: ops.NodeSpec, target: ops.Target) -> float:
    """Multiply-adds of whole chunks, 2 per lane and nanosecond."""
    shape = shape_of(node)
    chunks = -(-shape["tokens"] // CHUNK) * node.outputs[1].bounds[0] * shape["heads"]
    keys, values = shape["key_size"], shape["value_size"]
    return chunks * CHUNK * (3.0 * keys * values + CHUNK * (2 * keys + 1.5 * values)) / (2.0 * target.lanes)

"""Recurrences token by token: a program computes some columns of the values of one head.

A head's state is [K, V], in the memory of the final state. Each token decays it, adds products of a key's and a value's
elements, and reads it by the query's. The columns of a program are explicit vectors; no column needs another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from camshaft.lang import Array, Kernel, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.recurrent.columns import Columns, column_blocks, inverse_length
from camshaft.ops.recurrent.state_layout import WIDTH


@dataclass(frozen=True)
class HeadColumns(Columns):
    """The columns of a program of one sequence and head, the rows of its state."""

    state: Array
    tokens: int
    groups: int
    heads: int
    keys: int

    @property
    def index(self) -> Value:
        """The number of the sequence and head."""
        return self.k.program(0)

    def begin(self, initial: Array | None) -> None:
        """Writes the initial state, or zeros."""
        for d in self.k.range(self.keys):
            row = self.index * self.keys + d
            zeros = [self.k.splat(0.0, WIDTH) for _ in range(self.n_vectors)]
            self.store(self.state, row, zeros if initial is None else self.load(initial, row))

    def rows(self, t: Value) -> tuple[Value, Value]:
        """The rows of token t in arrays of queries and keys, and in arrays of values."""
        sequence, head = self.index // self.heads, self.index % self.heads
        token = sequence * self.tokens + t
        return token * self.groups + head // (self.heads // self.groups), token * self.heads + head


@kernel
def delta_tokens(
    k: Tracer, q: Array, keys: Array, v: Array, g: Array, beta: Array, *rest: Array,
    tokens: int, groups: int, heads: int, key_size: int, value_size: int, scale: float, l2_norm: bool,
) -> None:  # fmt: skip
    # S = exp(g) S; d = beta (v - k.T S); S += outer(k, d); o = scale q.T S
    out, state = rest[-2:]
    s = HeadColumns(k, value_size, state, tokens, groups, heads, key_size)
    s.begin(rest[0] if len(rest) > 2 else None)
    for t in k.range(tokens):
        at, row = s.rows(t)
        decay = k.splat(k.exp(g[row]), WIDTH)
        of_key = inverse_length(k, keys, at, key_size) if l2_norm else k.const(1.0, g[row].dtype)
        of_query = inverse_length(k, q, at, key_size) * scale if l2_norm else k.const(scale, g[row].dtype)
        found = s.zeros()
        for d in k.range(key_size):
            decayed = [x * decay for x in s.load(state, s.index * key_size + d)]
            s.add(found, keys[at, d] * of_key, decayed)
            s.store(state, s.index * key_size + d, decayed)
        rate = k.splat(beta[row], WIDTH)
        change = [(x - y.value) * rate for x, y in zip(s.load(v, row), found, strict=True)]
        total = s.zeros()
        for d in k.range(key_size):
            key, old = k.splat(keys[at, d] * of_key, WIDTH), s.load(state, s.index * key_size + d)
            new = [k.fma(key, x, y) for x, y in zip(change, old, strict=True)]
            s.add(total, q[at, d] * of_query, new)
            s.store(state, s.index * key_size + d, new)
        s.store(out, row, [x.value for x in total])


@kernel
def decayed_tokens(
    k: Tracer, q: Array, keys: Array, v: Array, g: Array, *rest: Array,
    tokens: int, groups: int, heads: int, key_size: int, value_size: int, scale: float, bonus: bool,
) -> None:  # fmt: skip
    # S = exp(g) S + outer(k, v); o = scale q.T S. With a bonus u, g is per key, and o = scale q.T (S before + u k v)
    out, state = rest[-2:]
    u = rest[0] if bonus else None
    given = rest[bonus:-2]
    s = HeadColumns(k, value_size, state, tokens, groups, heads, key_size)
    s.begin(given[0] if given else None)
    for t in k.range(tokens):
        at, row = s.rows(t)
        total, value = s.zeros(), s.load(v, row)
        decay = None if bonus else k.exp(g[row])
        for d in k.range(key_size):
            query, key, old = q[at, d] * scale, keys[at, d], s.load(state, s.index * key_size + d)
            factor = k.splat(k.exp(g[at, d]) if decay is None else decay, WIDTH)
            added = [k.splat(key, WIDTH) * x for x in value]
            new = [k.fma(factor, x, y) for x, y in zip(old, added, strict=True)]
            if u is None:
                s.add(total, query, new)
            else:
                first = k.splat(u[s.index % heads, d], WIDTH)
                s.add(total, query, [k.fma(first, y, x) for x, y in zip(old, added, strict=True)])
            s.store(state, s.index * key_size + d, new)
        s.store(out, row, [x.value for x in total])


@kernel
def corrected_tokens(
    k: Tracer, q: Array, g: Array, keys: Array, v: Array, a: Array, b: Array, *rest: Array,
    tokens: int, groups: int, heads: int, key_size: int, value_size: int,
) -> None:  # fmt: skip
    # S = diag(exp(g)) S + outer(b, a.T S) + outer(k, v); o = q.T S
    out, state = rest[-2:]
    s = HeadColumns(k, value_size, state, tokens, groups, heads, key_size)
    s.begin(rest[0] if len(rest) > 2 else None)
    for t in k.range(tokens):
        at, row = s.rows(t)
        found, total, value = s.zeros(), s.zeros(), s.load(v, row)
        for d in k.range(key_size):
            s.add(found, a[at, d], s.load(state, s.index * key_size + d))
        seen = [x.value for x in found]
        for d in k.range(key_size):
            old = s.load(state, s.index * key_size + d)
            decay, key, to = (k.splat(x, WIDTH) for x in (k.exp(g[at, d]), keys[at, d], b[at, d]))
            new = [k.fma(to, y, k.fma(key, z, decay * x)) for x, y, z in zip(old, seen, value, strict=True)]
            s.add(total, q[at, d], new)
            s.store(state, s.index * key_size + d, new)
        s.store(out, row, [x.value for x in total])


def shape_of(node: ops.NodeSpec) -> dict[str, int]:
    """The constants of a node whose first input is [B, T, G, K] and whose outputs are [B, T, H, V] and [B, H, K, V]."""
    _, tokens, groups, _ = node.inputs[0].bounds
    _, heads, keys, values = node.outputs[1].bounds
    return {"tokens": tokens, "groups": groups, "heads": heads, "key_size": keys, "value_size": values}


def launch(kernel: Kernel, node: ops.NodeSpec, rows: str, constants: ops.Attrs) -> ops.Build:
    """One launch: a program per sequence, head and columns. `rows`: for each input, whether the kernel sees it as rows of its
    last axis ("r") or as numbers ("n")."""
    sequences, heads, keys, values = node.outputs[1].bounds
    arrays = []
    for i, (spec, form) in enumerate(zip(node.inputs, rows, strict=False)):
        count = prod(spec.bounds)
        last = spec.bounds[-1]
        arrays.append(ops.read(i, shape=(count // last, last) if form == "r" else (count,)))
    n_rows = node.outputs[0].bounds[0] * node.outputs[0].bounds[1] * heads
    writes = ops.write(0, shape=(n_rows, values)), ops.write(1, shape=(sequences * heads * keys, values))
    grid = ops.Cells(sequences * heads), column_blocks(values)
    return ops.Build((ops.Launch(kernel, (*arrays, *writes), grid, {**shape_of(node), **constants}),))

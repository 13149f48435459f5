"""The gradients of the gated delta rule and gated linear attention token by token, for devices without the kernel by chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.dtypes import f32
from camshaft.lang import Array, Number, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.recurrent.gradient.head_kernel import Head, Held, Region, n_blocks, n_rows, regions
from camshaft.ops.recurrent.gradient.parts import CPUS, HEAD_STEPS, flat, summed
from camshaft.ops.recurrent.state_layout import WIDTH
from camshaft.ops.spec import TensorSpec

# The outputs that are sums over columns: dq, dk, dg and dbeta.
_SUMS = (0, 1, 3, 4)
# Vectors of a program: more of them take a software GPU's compiler a minute.
_VECTORS = 1


@dataclass(frozen=True)
class GatedHead(Head):
    """The inputs q, k, v, g, dy, and beta of the delta rule; and the gradients of q, k, v, g (and beta)."""

    groups: int
    given: Sequence[Array]
    beta: Array | None
    dy: Array
    outs: Sequence[Array]

    def key_row(self, t: Value) -> Value:
        """The row of token t in arrays of queries and keys."""
        head = self.s.k.program(0) % self.heads
        return self.token(t) * self.groups + head // (self.heads // self.groups)

    def change(self, t: Value, rows: Region, first: Number) -> list[Value]:
        """v - exp(g) k.T S, the state S from row `first` of `rows` on; v in linear attention."""
        (_, keys, v, g), s, row, at = self.given, self.s, self.row_of(t), self.key_row(t)
        value = s.load(v, row)
        if self.beta is None:
            return value
        found, decay = s.zeros(), s.k.splat(s.k.exp(g[row]), WIDTH)
        for d in s.k.range(self.keys):
            s.add(found, keys[at, d], s.get(rows, first + d))
        return [x - decay * y.value for x, y in zip(value, found, strict=True)]

    def rate(self, t: Value, vectors: Sequence[Value]) -> list[Value]:
        """beta vectors; the vectors in linear attention."""
        if self.beta is None:
            return list(vectors)
        rate = self.s.k.splat(self.beta[self.row_of(t)], WIDTH)
        return [rate * x for x in vectors]

    def advance(self, t: Value) -> None:
        (_, keys, _, g), s, k, at = self.given, self.s, self.s.k, self.key_row(t)
        added, decay = self.rate(t, self.change(t, self.h, 0)), k.splat(k.exp(g[self.row_of(t)]), WIDTH)
        for d in k.range(self.keys):
            key = k.splat(keys[at, d], WIDTH)
            s.put(self.h, d, [k.fma(key, x, decay * y) for x, y in zip(added, s.get(self.h, d), strict=True)])

    def backward(self, t: Value, old: Value) -> None:
        (q, keys, _, _), s, k = self.given, self.s, self.s.k
        row, at = self.row_of(t), self.key_row(t)
        part, of_output, into = self.of_block + row, s.load(self.dy, row), s.zeros()
        for d in k.range(self.keys):
            query = k.splat(q[at, d], WIDTH)
            of_state = [k.fma(query, x, y) for x, y in zip(of_output, s.get(self.g, d), strict=True)]
            self.outs[0][part, d] = s.dot(s.get(self.held, old + self.keys + d), of_output)
            s.add(into, keys[at, d], of_state)
            s.put(self.g, d, of_state)
        through, change = [x.value for x in into], self.change(t, self.held, old)
        if self.beta is not None:
            self.outs[4][part] = s.dot(through, change)
        of_value = self.rate(t, through)
        s.store(self.outs[2], row, of_value)
        self._decays(t, old, of_value, self.rate(t, change))

    def _decays(self, t: Value, old: Value, of_value: Sequence[Value], added: Sequence[Value]) -> None:
        """dk, dg and g before the decay."""
        (_, keys, _, g), s, k = self.given, self.s, self.s.k
        row, at, total = self.row_of(t), self.key_row(t), s.zeros()
        part, decay = self.of_block + row, k.splat(k.exp(g[row]), WIDTH)
        for d in k.range(self.keys):
            of_state, before = s.get(self.g, d), [decay * x for x in s.get(self.held, old + d)]
            of_key = s.dot(of_state, added)
            if self.beta is not None:
                of_key = of_key - s.dot(before, of_value)
                key = k.splat(-keys[at, d], WIDTH)
                of_state = [k.fma(key, x, y) for x, y in zip(of_value, of_state, strict=True)]
            self.outs[1][part, d] = of_key
            for sums, x, y in zip(total, of_state, before, strict=True):
                sums.set(k.fma(x, y, sums.value))
            s.put(self.g, d, [decay * x for x in of_state])
        added_up = total[0].value
        for sums in total[1:]:
            added_up = added_up + sums.value
        self.outs[3][part] = k.vector_sum(added_up)


@kernel
def tokens_backward(
    k: Tracer,
    *arrays: Any,
    tokens: int,
    groups: int,
    heads: int,
    key_size: int,
    value_size: int,
    rows: int,
    delta: bool,
) -> None:
    # q, k, v, g, (beta,) state, dy, dstate; dq, dk, dv, dg, (dbeta,) dfirst; starts, work
    state, dy, dstate = arrays[4 + delta : 7 + delta]
    *outs, dfirst, starts, work = arrays[7 + delta :]
    s, beta = Held(k, value_size, _VECTORS), arrays[4] if delta else None
    places, sizes = regions(s, key_size, work), (tokens, heads, key_size, rows)
    head = GatedHead(s, *sizes, *places, groups, arrays[:4], beta, dy, outs)
    head.sweep(state, dstate, dfirst, starts)


def variant(delta: bool) -> ops.KernelVariant:
    """The variant of gated_delta_rule_gradient (`delta`) or gated_linear_attention_gradient."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        (sequences, tokens, groups, keys), (_, _, heads, values) = node.inputs[0].bounds, node.inputs[2].bounds
        blocks, rows = n_blocks(values, _VECTORS), sequences * tokens * heads
        programs = sequences * heads * blocks
        heights = programs * -(-tokens // HEAD_STEPS) * keys, programs * n_rows(keys)
        scratch = [TensorSpec((height, WIDTH * _VECTORS), f32) for height in heights]
        given, made = ([flat(spec) for spec in specs] for specs in (node.inputs, node.outputs))
        outs = [ops.write(i, shape=shape) for i, shape in enumerate(made)]
        sums = [i for i in _SUMS[: 3 + delta] if blocks > 1]
        for i in sums:
            shape = blocks * made[i][0], *made[i][1:]
            outs[i] = ops.scratch(len(scratch), "write", shape=shape)
            scratch.append(TensorSpec(shape, f32))
        reads = [ops.read(i, shape=shape) for i, shape in enumerate(given)]
        arrays = (*reads, *outs, ops.scratch(0, "update"), ops.scratch(1, "update"))
        sizes = {
            "tokens": tokens,
            "groups": groups,
            "heads": heads,
            "key_size": keys,
            "value_size": values,
            "rows": rows,
        }
        grid = ops.Cells(sequences * heads), ops.Cells(values, WIDTH * _VECTORS)
        launches = [ops.Launch(tokens_backward, arrays, grid, {**sizes, "delta": delta})]
        launches += [summed(2 + n, i, node, 1, blocks) for n, i in enumerate(sums)]
        return ops.Build(tuple(launches), tuple(scratch))

    return ops.KernelVariant("token_by_token", ops.EVERYWHERE - CPUS, build)

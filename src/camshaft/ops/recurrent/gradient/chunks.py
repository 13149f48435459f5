"""The kernel of the gradients of the gated delta rule and gated linear attention in chunks of 64 tokens, a head per program.

A sweep forward keeps the state before each chunk, and what the system of a chunk gave; a sweep backward takes the gradients
(chunk_steps.py). Sizes of keys and values are padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from camshaft.dtypes import f32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.recurrent.chunk import CHUNK, Chunk
from camshaft.ops.recurrent.gradient.chunk_steps import Backward, RowOf
from camshaft.ops.recurrent.gradient.parts import CPUS, flat
from camshaft.ops.recurrent.state_layout import WIDTH
from camshaft.ops.spec import TensorSpec


@dataclass(frozen=True)
class Head:
    """The arrays of a program. `starts` has the states before chunks, `solved` t of each; `turned` and `turned_change` the state
    and its gradient transposed."""

    chunk: Chunk
    q: Array
    keys: Array
    v: Array
    g: Array
    beta: Array | None
    tokens: int
    groups: int
    heads: int
    starts: Array
    solved: Array | None

    @property
    def index(self) -> Value:
        """The number of the sequence and head."""
        return self.chunk.k.program(0)

    @property
    def n_chunks(self) -> int:
        return -(-self.tokens // CHUNK)

    def place(self, chunk: Value, r: Value) -> tuple[Value, Value]:
        """The rows of a chunk's token in arrays of queries and keys, and in those of values."""
        sequence, head = self.index // self.heads, self.index % self.heads
        token = sequence * self.tokens + chunk * CHUNK + r
        return token * self.groups + head // (self.heads // self.groups), token * self.heads + head

    def rows(self, chunk: Value) -> RowOf:
        """The row of a chunk's token in arrays of values."""
        return lambda r: self.place(chunk, r)[1]

    def start(self, chunk: Value) -> Value:
        """The first row of the state before a chunk."""
        return (self.index * self.n_chunks + chunk) * self.chunk.key_size

    def solved_row(self, chunk: Value) -> Value:
        """The first row of a chunk's t."""
        return (self.index * self.n_chunks + chunk) * CHUNK

    def move(self, source: Array, first: Value, to: Array, place: Value) -> None:
        """Copies a state between padded rows."""
        k, c = self.chunk.k, self.chunk
        for d in k.range(c.key_size):
            for at in k.range(0, c.value_size, WIDTH):
                k.store_vector(to, k.load_vector(source, first + d, at, width=WIDTH), place + d, at)

    def take(self, given: Array, keys: int, to: Array) -> None:
        """Copies a state of `keys` rows, with zeros up to the size of a padded one."""
        k, c, first = self.chunk.k, self.chunk, self.index * keys
        for d in k.range(c.key_size):
            there, row = d < keys, first + k.minimum(d, keys - 1)
            for at in k.range(0, c.value_size, WIDTH):
                x = k.load_vector(given, row, at, width=WIDTH, count=c.count(given, at))
                k.store_vector(to, k.select(there, x, k.splat(0.0, WIDTH)), self.index * c.key_size + d, at)

    def give(self, source: Array, keys: int, to: Array) -> None:
        """Copies a state from padded rows."""
        k, c = self.chunk.k, self.chunk
        for d in k.range(keys):
            for at in k.range(0, to.shape[-1], WIDTH):
                x = k.load_vector(source, self.index * c.key_size + d, at, width=WIDTH)
                k.store_vector(to, x, self.index * keys + d, at, count=c.count(to, at))

    def load(self, chunk: Value) -> Value:
        """Loads a chunk's keys, queries and gates; returns its number of tokens."""
        c, place = self.chunk, partial(self.place, chunk)
        active = c.k.minimum(self.tokens - chunk * CHUNK, CHUNK)
        c.load(self.q, self.keys, place, active)
        c.gates(self.g, self.beta, place, active)
        return active

    def forward(self, state: Array) -> None:
        """The sweep forward; `state` ends before the last chunk."""
        c, k, first = self.chunk, self.chunk.k, self.index * self.chunk.key_size
        for chunk in k.range(self.n_chunks):
            self.move(state, first, self.starts, self.start(chunk))
            active = self.load(chunk)
            c.copy(self.v, c.values, c.value_size, self.rows(chunk), active)
            if self.solved is not None:
                self._solve(self.solved, self.solved_row(chunk), state, first)
            with k.when(chunk < self.n_chunks - 1):
                c.advance(state, first)

    def _solve(self, solved: Array, place: Value, state: Array, first: Value) -> None:
        c = self.chunk
        c.pairs([(c.keys, c.system, True)], c.turned, c.key_size)
        c.subtract(state, first)
        c.solve(lambda row, column, t: c.store(solved, place + row, column, t))

    def load_for_backward(self, chunk: Value, active: Value) -> None:
        """Loads t, or v in linear attention, and the products of keys with queries and keys."""
        c = self.chunk
        if self.solved is not None:
            place = self.solved_row(chunk)
            c.copy(self.solved, c.values, c.value_size, lambda r: place + r, active)
        else:
            c.copy(self.v, c.values, c.value_size, self.rows(chunk), active)
        products = [(c.queries, c.inside, False), (c.keys, c.system, True)]
        c.pairs(products[: 1 + c.delta], c.turned, c.key_size)


@kernel
def head_backward(
    k: Tracer, q: Array, keys: Array, v: Array, g: Array, *rest: Any,
    tokens: int, groups: int, heads: int, key_size: int, value_size: int, delta: bool, rows: int, vectors: int,
) -> None:  # fmt: skip
    # (beta,) state, dy, dstate; dq, dk, dv, dg, (dbeta,) dfirst; starts, turned, turned_change, running, (solved)
    beta, (state, dy, dstate) = rest[0] if delta else None, rest[delta : 3 + delta]
    dq, dk, dv, dg, *of_beta, dfirst = rest[3 + delta : 8 + 2 * delta]
    starts, turned, turned_change, running, *solved = rest[8 + 2 * delta :]
    c = Chunk.of(k, padded(key_size), padded(value_size), delta, rows, vectors)
    head = Head(c, q, keys, v, g, beta, tokens, groups, heads, starts, solved[0] if delta else None)
    first, of_values = head.index * c.key_size, head.index * c.value_size
    head.take(state, key_size, running)
    head.forward(running)
    head.take(dstate, key_size, running)
    b = Backward.of(c)
    for back in k.range(head.n_chunks):
        chunk = head.n_chunks - 1 - back
        active, row = head.load(chunk), head.rows(chunk)
        head.load_for_backward(chunk, active)
        c.copy(dy, b.dy, c.value_size, row, active)
        c.turn(starts, head.start(chunk), c.key_size, c.value_size, turned, of_values)
        c.turn(running, first, c.key_size, c.value_size, turned_change, of_values)
        b.clear()
        b.of_values(running, first)
        if delta:
            b.solve()
        b.write_values(dv, row, active)
        b.of_pairs()
        b.queries_and_keys(turned, of_values, dq, dk, row, active)
        b.keys_before(turned_change, of_values, dk, row, active)
        b.retreat(running, starts, first, head.start(chunk))
        b.write_gates(dg, of_beta[0] if delta else None, row, active)
    head.give(running, key_size, dfirst)


def padded(size: int) -> int:
    """The next multiple of 32, which register tiles divide."""
    return -(-size // 32) * 32


def variant(delta: bool) -> ops.KernelVariant:
    """The variant of gated_delta_rule_gradient (`delta`) or gated_linear_attention_gradient."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        (sequences, tokens, groups, keys), (_, _, heads, values) = node.inputs[0].bounds, node.inputs[2].bounds
        programs = sequences * heads
        chunks = programs * -(-tokens // CHUNK)
        rows, columns = padded(keys), padded(values)
        turned = programs * columns, rows
        shapes = (chunks * rows, columns), turned, turned, (programs * rows, columns), (chunks * CHUNK, columns)
        scratch = tuple(TensorSpec(shape, f32) for shape in shapes[: 4 + delta])
        given, made = ([flat(spec) for spec in specs] for specs in (node.inputs, node.outputs))
        arrays = (
            *(ops.read(i, shape=shape) for i, shape in enumerate(given)),
            *(ops.write(i, shape=shape) for i, shape in enumerate(made)),
            *(ops.scratch(i, "update") for i in range(len(scratch))),
        )
        tile = {"rows": 8, "vectors": 2} if target.lanes >= WIDTH else {"rows": 4, "vectors": 1}
        sizes = {"tokens": tokens, "groups": groups, "heads": heads, "key_size": keys, "value_size": values}
        launch = ops.Launch(head_backward, arrays, (ops.Cells(programs),), {**sizes, **tile, "delta": delta})
        return ops.Build((launch,), scratch)

    return ops.KernelVariant("chunks", CPUS, build)

"""The frame of ops whose state belongs to a slot: the rows of a run that are a slot's, checks, reference and samples.

A run has rows of several sequences, those of one slot side by side and in order. A program takes one slot and some columns of its
state, and walks the slot's rows: prompts, parts of prompts, single tokens and batches are the same code, and give the same bits.
A state counts as zeros where the slot's first row is the first of its sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32, i64
from camshaft.lang import Array, Constant, Kernel, Number, Tracer, Value
from camshaft.ops import op as ops
from camshaft.ops.checks import TO_TOLERANCE, partly_active
from camshaft.ops.gradient import IN_PLACE
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.recurrent.columns import Columns, column_blocks
from camshaft.ops.recurrent.frame import AxesOp
from camshaft.ops.recurrent.state_layout import WIDTH, state_blocks
from camshaft.ops.spec import TensorSpec, bound

# Columns of `rows`: a slot's first row, the row after its last, and 1 where its state counts as zeros.
FIRST, END, FRESH = 0, 1, 2
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class SlotColumns(Columns):
    """The columns of a program, where `per_slot` programs of axis 0 share a slot."""

    per_slot: int = 1

    @property
    def slot(self) -> Value:
        return self.k.program(0) // self.per_slot

    @property
    def head(self) -> Value:
        return self.k.program(0) % self.per_slot

    def first_row(self, n_rows: int) -> Value:
        """The first row of the program's block of a state [.., blocks, n_rows, columns] (`state_blocks`)."""
        blocks = state_blocks(self.n)[0]
        program = self.k.program(0)
        return (program * blocks + self.k.program(1)) * n_rows if blocks > 1 else program * n_rows

    def load_state(self, array: Array, row: Number) -> list[Value]:
        """The program's columns of a row of its block."""
        return [self.k.load_vector(array, row, at, width=WIDTH, count=count) for at, count in self._state_columns]

    def store_state(self, array: Array, row: Number, vectors: Sequence[Value]) -> None:
        """Stores the program's columns of a row of its block."""
        for (at, count), vector in zip(self._state_columns, vectors, strict=True):
            self.k.store_vector(array, vector, row, at, count=count)

    @property
    def _state_columns(self) -> list[tuple[Number, Value | None]]:
        if self.n_vectors > 1:
            return [(i * WIDTH, None) for i in range(self.n_vectors)]
        return [(at, self.count(at)) for at in self.starts]

    def span(self, rows: Array) -> tuple[Value, Value]:
        """The slot's first row, and the one after its last."""
        return rows[self.slot, FIRST].to(i64), rows[self.slot, END].to(i64)

    def clear(self, state: Array, first: Number, n_rows: int, rows: Array) -> None:
        """Zeros in `n_rows` rows of the state, where the slot's state counts as zeros."""
        with self.k.when(rows[self.slot, FRESH] > 0):
            for i in self.k.range(n_rows):
                self.store_state(state, first + i, [self.k.splat(0.0, WIDTH) for _ in range(self.n_vectors)])


def expect_blocks(op: str, sizes: Sizes) -> int:
    """The columns of a state of B blocks of V. ShapeError unless the blocks are those of `state_blocks`."""
    columns = sizes["B"] * sizes["V"]
    blocks = state_blocks(columns)
    came, wanted = f"a state of {sizes['B']} blocks of {sizes['V']} columns", f"{blocks[0]} of {blocks[1]}"
    ops.expect(blocks == (sizes["B"], sizes["V"]), op, came, wanted)
    return columns


def expect_groups(op: str, sizes: Sizes, attrs: ops.Attrs) -> int:
    """The attribute `groups`. ShapeError unless it divides the heads."""
    groups, heads = attrs.get("groups", 0), sizes["H"]
    good = groups > 0 and heads % groups == 0
    ops.expect(good, op, (heads, groups), "heads H a multiple of the groups, both above 0")
    return int(groups)


def softplus(k: Tracer, x: Value) -> Value:
    """log(1 + exp(x)), exact where exp(x) is far below 1: log(1 + p) is log(w) p / (w - 1), w = 1 + p as rounded (Kahan)."""
    power = k.exp(-k.abs(x))
    wide = power + 1.0
    tiny = wide == 1.0
    exact = k.log(wide) * power / k.select(tiny, 1.0, wide - 1.0)
    return k.maximum(x, 0.0) + k.select(tiny, power, exact)


def columns_grid(slots: int, columns: int, per_slot: int = 1) -> tuple[ops.Cells, ops.Cells]:
    """The grid of programs that SlotColumns describes."""
    return ops.Cells(slots * per_slot), column_blocks(columns)


def heads_build(
    node: ops.NodeSpec, kernel: Kernel, arrays: Iterable[ops.Operand], state: int, **constants: Constant
) -> ops.Build:
    """One launch over a state [S, H, blocks, K, V], input number `state`, which the rows of slots follow. A program takes a head
    of a slot, and one block of its columns."""
    slots, heads, blocks, keys, columns = node.inputs[state].bounds
    states = ops.update(state, shape=(slots * heads * blocks * keys, columns))
    sizes = {"heads": heads, "key_size": keys, "value_size": blocks * columns}
    operands = *arrays, states, ops.read(state + 1), ops.write(0)
    return ops.Build((ops.Launch(kernel, operands, columns_grid(slots, blocks * columns, heads), constants | sizes),))


def state_flops(state: int, per: float) -> Callable[[ops.NodeSpec], float]:
    """Operations of an op that does `per` for each token and element of a slot's state, input number `state`."""
    return lambda node: per * node.inputs[0].bounds[0] * float(np.prod(node.inputs[state].bounds[1:]))


@dataclass(frozen=True)
class SlotOp(AxesOp):
    """An op over the rows of slots, with axis T for the rows, S for the slots. The state comes before the rows of slots, `rows`.
    `gives`: the axes of the result. `compute(inputs of one slot, state, **attrs)` returns its result and its state after them,
    in float64."""

    gives: str
    sizes_of: Callable[[Sizes, ops.Attrs], Sizes]
    compute: Callable[..., tuple[Any, Any]]
    samples: Sequence[tuple[Sizes, ops.Attrs]]
    attributes: tuple[Attribute, ...] = ()
    draws: Mapping[str, Callable[[np.random.Generator, tuple[int, ...]], Any]] | None = None

    @property
    def state(self) -> int:
        return self.names.index("state")


def slot_op(row: SlotOp, formula: str, build: Callable[[ops.NodeSpec, ops.Target], ops.Build], **fields: Any) -> ops.Op:
    """The Op of a row, with one variant."""
    variant = ops.KernelVariant("slot_per_program", ops.EVERYWHERE, build)
    return ops.Op(
        name=row.name,
        formula=formula,
        infer=lambda specs, attrs: infer(row, specs, attrs),
        reference=lambda arrays, attrs: _reference(row, arrays, attrs),
        variants=(variant,),
        samples=lambda: _samples(row),
        error_samples=lambda: _error_samples(row),
        tolerance=TO_TOLERANCE | {"f32": 4e-12},
        updates=(row.state,),
        indexes={row.names.index("rows"): lambda node: bound(node.inputs[0].shape[0]) + 1},
        vjp=IN_PLACE,
        workload=lambda node: {row.names.index("rows"): _workload(node, row)},
        parameters=Parameters(" ".join(row.inputs), row.attributes),
        **fields,
    )


def infer(row: SlotOp, specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    """The spec of the result. ShapeError for inputs of other axes or dtypes."""
    row.expect_inputs(specs)
    found: dict[str, int] = {}
    tokens = specs[0].shape[0] if specs[0].shape else 1
    for (name, letters), spec in zip(row.inputs.items(), specs, strict=False):
        plain, dtype = name.lstrip("*"), i32 if name == "rows" else f32
        text = f"{plain} of {dtype} [{', '.join(letters)}]"
        fits = spec.is_plain and spec.dtype == dtype and len(spec.shape) == len(letters) and 0 not in spec.bounds
        ops.expect(fits, row.name, spec, text)
        for letter, size in zip(letters, spec.shape, strict=True):
            known = tokens if letter == "T" else found.setdefault(letter, size) if isinstance(size, int) else None
            ops.expect(known == size, row.name, spec, f"{text} with {letter} = {known}, fixed but for T")
    ops.expect(found["3"] == 3, row.name, specs[row.names.index("rows")], "rows of i32 [S, 3], of slot_rows")
    sizes = row.sizes_of(found, attrs)
    return (TensorSpec(tuple(tokens if a == "T" else sizes[a] for a in row.gives), f32),)


def _reference(row: SlotOp, arrays: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    given: dict[str, Any] = dict(zip(row.names, arrays, strict=False))
    rows, state = given.pop("rows"), given.pop("state").astype(np.float64)
    out = None
    for slot, (first, end, fresh) in enumerate(rows.tolist()):
        if first >= end:
            continue
        own = {
            name: np.asarray(x, np.float64)[first:end] if "T" in _axes(row, name) else np.asarray(x, np.float64)
            for name, x in given.items()
        }
        y, state[slot] = row.compute(**own, state=0 * state[slot] if fresh else state[slot], **attrs)
        out = np.zeros((len(arrays[0]), *y.shape[1:])) if out is None else out
        out[first:end] = y
    assert out is not None
    return out, state


def _axes(row: SlotOp, name: str) -> str:
    return row.inputs[name] if name in row.inputs else row.inputs[f"*{name}"]


def _workload(node: ops.NodeSpec, row: SlotOp) -> ops.Array:
    """All rows are those of slot 0, in the middle of a sequence."""
    rows = np.zeros((node.inputs[row.state].bounds[0], 3), np.int32)
    rows[0, END] = node.inputs[0].bounds[0]
    return rows


# Rows of slots: three in mixed order, of which one begins a sequence; none of slot 1.
ROWS = np.array([[3, 5, 0], [7, 0, 0], [0, 3, 1], [5, 7, 0]], np.int32)


def _samples(row: SlotOp) -> Any:
    for i, (sizes, attrs) in enumerate(row.samples):
        rng, shapes = np.random.default_rng(i), {**sizes, "T": int(ROWS.max()), "S": len(ROWS), "3": 3}
        arrays = []
        for name in row.names[: len(row.inputs) if i % 2 == 0 else row.n_required]:
            shape = tuple(shapes[a] for a in _axes(row, name))
            draw = (row.draws or {}).get(name)
            values = ROWS if name == "rows" else rng.normal(size=shape) if draw is None else draw(rng, shape)
            arrays.append(np.asarray(values, np.int32 if name == "rows" else np.float32))
        text = " ".join(f"{a}{n}" for a, n in sizes.items())
        yield ops.Sample(text, tuple(arrays), attrs)
        if i == 0:
            rows = np.where(ROWS <= 5, ROWS, 0).astype(np.int32)
            arrays[row.names.index("rows")] = rows
            fixed = tuple(j for j, name in enumerate(row.names) if "T" not in _axes(row, name))
            yield partly_active(ops.Sample("5 of 7 rows", tuple(arrays), attrs), 5, fixed=fixed)


def _error_samples(row: SlotOp) -> Any:
    """An input too few, another dtype, another number of slots."""
    first = next(iter(_samples(row)))
    specs = tuple(TensorSpec(a.shape, i32 if a.dtype == np.int32 else f32) for a in first.inputs)
    yield ops.ErrorSample(specs[: row.n_required - 1], first.attrs, "wanted .*;")
    yield ops.ErrorSample((TensorSpec(specs[0].shape, i32), *specs[1:]), first.attrs, f"wanted {row.names[0]} of f32")
    at = row.names.index("rows")
    yield ops.ErrorSample((*specs[:at], TensorSpec((9, 3), i32), *specs[at + 1 :]), first.attrs, "wanted rows of i32")

"""Rotary embeddings with several position axes: a row for each op. Positions are [T, axes].

- rope_multi: the pairs of a head in sections, one per axis. "contiguous" (Qwen2-VL): pair i has the angle of column i of the
  table's row at its section's position. "interleaved" (Qwen3-VL): the axes take turns, pair i that of axis i % n until it has its
  number of pairs, and what is left is axis 0. "vision" (GGML_ROPE_TYPE_VISION): as contiguous, but each section begins at
  column 0.
- rope_axial_2d, rope_vision_2d: the first half of a head is rotated by the first position, the second by the second, each with
  pairs of its own. The axes are (row, column) in the first op, (x, y) in the second.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from camshaft.dtypes import DType, bf16, f16, f32, i32
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.parameters import HEAD_DIM, HEADS, Attribute, Parameters
from camshaft.ops.rope import decomposition, frame
from camshaft.ops.rope.frame import INVERSE, Rotation
from camshaft.ops.rope.table import rope_table
from camshaft.ops.spec import TensorSpec

LAYOUTS = ("contiguous", "interleaved", "vision")
_PAIRING = Attribute("pairing", "str", "neox")
_SECTIONS = Attribute("sections", "tuple[int, ...]"), Attribute("layout", "str", "contiguous")
# The rotation of an op for its attributes and the table's columns. ShapeError for those that do not fit.
Rule = Callable[[ops.Attrs, int], Rotation]


def _check_sections(attrs: ops.Attrs) -> None:
    sections, layout = attrs.get("sections", ()), attrs.get("layout", "contiguous")
    good = isinstance(sections, tuple) and sections and all(type(n) is int and n >= 0 for n in sections)
    ops.expect(bool(good) and sum(sections) > 0, "rope_multi", f"sections {sections!r}", "pairs of each position axis")
    ops.expect(layout in LAYOUTS, "rope_multi", repr(layout), f"a layout of {', '.join(LAYOUTS)}")


def _multi(attrs: ops.Attrs, rotary_dim: int) -> Rotation:
    sections, layout = attrs["sections"], attrs.get("layout", "contiguous")
    n_pairs, columns = sum(sections), max(sections) if layout == "vision" else sum(sections)
    fits = 2 * n_pairs <= attrs["head_dim"] and rotary_dim == 2 * columns
    wanted = f"a table of {2 * columns} columns, and a head_dim of at least {2 * n_pairs}"
    ops.expect(fits, "rope_multi", f"a table of {rotary_dim} columns, sections {sections}", wanted)
    whole = frame.whole_head(attrs.get("pairing", "neox"), n_pairs)
    if layout == "interleaved":
        return Rotation(*whole, (), sections)
    starts = accumulate(sections, initial=0)
    runs = (
        (s, n, 0 if layout == "vision" else s, axis) for axis, (s, n) in enumerate(zip(starts, sections, strict=False))
    )
    return Rotation(*whole, tuple(run for run in runs if run[1]))


def _halves(name: str, attrs: ops.Attrs, rotary_dim: int) -> Rotation:
    head_dim, n = attrs["head_dim"], rotary_dim // 2
    ops.expect(head_dim == 2 * rotary_dim, name, f"a table of {rotary_dim} columns", f"half of head_dim {head_dim}")
    interleaved = attrs.get("pairing", "neox") == "interleaved"
    return Rotation(interleaved, ((0, n, 0), (n, n, 2 * n)), ((0, n, 0, 0), (n, n, 0, 1)))


def _sample(
    name: str, heads: int, head_dim: int, columns: int, axes: int, dtype: DType = f32, **attrs: Any
) -> ops.Sample:
    rng = np.random.default_rng(len(name))
    x = rng.normal(size=(3, heads * head_dim)).astype(dtype.numpy)
    positions = rng.integers(0, 40, (3, axes)).astype(np.int32)
    given = {"heads": heads, "head_dim": head_dim, **attrs}
    return ops.Sample(name, (x, positions, rope_table(40, columns, 1e4)), given)


def _multi_samples() -> Iterable[ops.Sample]:
    yield _sample("contiguous", 2, 64, 64, 3, sections=(8, 12, 12))
    yield _sample("interleaved, partial", 2, 80, 66, 3, sections=(13, 10, 10), layout="interleaved")
    yield _sample("vision", 3, 68, 34, 2, sections=(17, 17), layout="vision")
    yield _sample("contiguous pairs, bf16", 1, 34, 34, 3, bf16, sections=(1, 0, 16), pairing="interleaved")
    yield _sample("interleaved, inverse", 1, 12, 12, 3, sections=(2, 2, 2), layout="interleaved", inverse=True)
    yield partly_active(_sample("2 of 3 tokens", 2, 64, 64, 4, f16, sections=(8, 12, 12, 0)), 2, fixed=(2,))


def _half_samples() -> Iterable[ops.Sample]:
    yield _sample("neox", 2, 64, 32, 2)
    yield _sample("interleaved", 2, 68, 34, 2, pairing="interleaved")
    yield _sample("inverse, bf16", 3, 4, 2, 2, bf16, inverse=True)
    yield partly_active(_sample("2 of 3 tokens", 1, 136, 68, 2, f16), 2, fixed=(2,))


def _error_samples(axes: int, **attrs: Any) -> Iterable[ops.ErrorSample]:
    x, positions, columns = TensorSpec((3, 128), f32), TensorSpec((3, axes), i32), 64 if "sections" in attrs else 32
    given, table = {"heads": 2, "head_dim": 64, **attrs}, TensorSpec((40, columns), f32)
    yield ops.ErrorSample((x, positions), given, "wanted x ")
    yield ops.ErrorSample((x, TensorSpec((3,), i32), table), given, rf"wanted positions of i32\[3, {axes}\]")
    yield ops.ErrorSample((x, positions, TensorSpec((40, 20), f32)), given, "a table of 20 columns")
    yield ops.ErrorSample((x, positions, table), given | {"pairing": "odd"}, "wanted a pairing")
    for name, value, wanted in (("sections", (), "wanted pairs of each"), ("layout", "odd", "wanted a layout")):
        if "sections" in attrs:
            yield ops.ErrorSample((x, positions, table), given | {name: value}, wanted)


def _op(name: str, text: str, rule: Rule, attributes: tuple[Attribute, ...], samples: Any, errors: Any) -> ops.Op:
    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        if name == "rope_multi":
            _check_sections(attrs)
        x = frame.checked(name, specs, attrs, len(attrs.get("sections", "xy")))
        rule(attrs, specs[2].bounds[1])
        return (x,)

    def reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
        x, positions, table = inputs
        return (decomposition.rotated(rule(attrs, table.shape[1]), x, positions, table, attrs),)

    def decompose(f: Any, x: Any, positions: Any, table: Any, **attrs: Any) -> Any:
        return decomposition.decomposed(f, rule(attrs, table.shape[1]), x, positions, table, attrs)

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        return frame.build(rule(node.attrs, node.inputs[2].bounds[1]), node, target)

    return ops.Op(
        name=name,
        formula=text,
        parameters=Parameters("x positions table", (HEADS, HEAD_DIM, *attributes, _PAIRING, INVERSE)),
        infer=infer,
        reference=reference,
        variants=(ops.KernelVariant("one_token_per_program", ops.EVERYWHERE, build),),
        indexes={1: lambda node: node.inputs[2].bounds[0]},
        samples=samples,
        error_samples=errors,
        tolerance=frame.TOLERANCE,
        flops=lambda node: 3.0 * np.prod(node.inputs[0].bounds),
        decompose=decompose,
        vjp=decomposition.rotated_back(name),
    )


_TEXT = "(a, b) -> (a cos - b sin, a sin + b cos), the angle from"
OPS = {
    "rope_multi": _op(
        "rope_multi",
        f"{_TEXT} table[position of the pair's section]",
        _multi,
        _SECTIONS,
        _multi_samples,
        lambda: _error_samples(3, sections=(8, 12, 12)),
    ),
    **{
        name: _op(
            name,
            f"{_TEXT} table[{first}] in a head's first half, else table[{second}]",
            functools.partial(_halves, name),
            (),
            _half_samples,
            lambda: _error_samples(2),
        )
        for name, first, second in (("rope_axial_2d", "row", "column"), ("rope_vision_2d", "x", "y"))
    },
}

"""Samples, the reference and the tolerance of chains of elementwise ops, all from their parts'.

A chain may amplify what its parts round: exp of exp, a difference of near equals. So its tolerance is found by computing the
reference once more with every inexact step off by some ulps: that is how far apart right kernels may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from camshaft.dtypes import DType, as_dtype, boolean, f32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.elementwise import formula_samples
from camshaft.ops.elementwise import frame as elementwise
from camshaft.ops.elementwise.chain_text import Chain
from camshaft.ops.elementwise.formula import Formula
from camshaft.ops.spec import Dim, TensorSpec

Parts = Mapping[str, ops.Op]
Rows = Mapping[str, Formula]
Nudge = Callable[[ops.Array, DType], ops.Array]
Shapes = tuple[tuple[int, ...], ...]
# How far a part's result may be off, relative to it. Of 16-bit results, rounded from f32, one in a few is off by one place.
_OFF = {"f32": 2.0**-22, "f64": 2.0**-51, "f16": 2.0**-11, "bf16": 2.0**-8}
_SHARE = {"f16": 1 / 32, "bf16": 1 / 32}
# A kernel may be off by more than this one drawing shows.
_MARGIN = 16.0
_TRIES = 16
_COLUMNS = elementwise.BLOCK + 17


def computed(chain: Chain, inputs: Sequence[ops.Array], parts: Parts, nudge: Nudge | None = None) -> list[ops.Array]:
    """Every step's reference, from earlier ones rounded to their dtypes; `nudge` moves the results of inexact parts."""
    values, found = [np.asarray(x) for x in inputs], []
    for step in chain.steps:
        part, given = parts[step.op], [values[i] for i in step.operands]
        (result,) = part.reference(given, step.attrs)
        specs = tuple(TensorSpec(x.shape, as_dtype(x.dtype)) for x in given)
        dtype = as_dtype(part.infer(specs, step.attrs)[0].dtype)
        with np.errstate(all="ignore"):
            if nudge is not None and part.tolerance and dtype.is_float:
                result = nudge(result, dtype)
            values.append(result.astype(dtype.numpy))
        found.append(result)
    return found


def nudged(chain: Chain, inputs: Sequence[ops.Array], parts: Parts) -> list[ops.Array]:
    """`computed`, with every inexact part's results off by as much as a right kernel's may be."""
    rng = np.random.default_rng(23)

    def nudge(x: ops.Array, dtype: DType) -> ops.Array:
        off = _OFF[dtype.name] * rng.uniform(-1, 1, x.shape) * (rng.random(x.shape) < _SHARE.get(dtype.name, 1.0))
        return np.asarray(x.astype(np.promote_types(x.dtype, np.float32)) * (1 + off)).astype(x.dtype)

    return computed(chain, inputs, parts, nudge)


class Tolerance(Mapping[str, float]):
    """The tolerance by dtype of the results, found from the samples when it is first asked for. Results whose parts are all
    exact have none."""

    def __init__(self, chain: Chain, parts: Parts, rows: Rows) -> None:
        self._chain, self._parts, self._rows = chain, parts, rows

    @cached_property
    def _found(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if not any(self._parts[step.op].tolerance for step in self._chain.steps):
            return found
        for sample in samples(self._chain, self._parts, self._rows):
            plain, off = (how(self._chain, sample.inputs, self._parts) for how in (computed, nudged))
            for i in self._chain.results:
                name = "f32" if plain[i].dtype == np.float64 else as_dtype(plain[i].dtype).name
                found[name] = max(found.get(name, 0.0), _MARGIN * _distance(off[i], plain[i]))
        bases = [self._parts[step.op].tolerance for step in self._chain.steps]
        return {name: error + max(b.get(name, 0.0) for b in bases) for name, error in found.items()}

    def __getitem__(self, name: str) -> float:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _distance(got: ops.Array, want: ops.Array) -> float:
    """The normalized mean squared error over what is finite, or that of the worst element where it is out of proportion."""
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if (got.dtype.kind != "f" and got.dtype != as_dtype("bf16").numpy) or not finite.any():
        return 0.0
    with np.errstate(over="ignore"):
        squares, scale = (a[finite] - b[finite]) ** 2, float((b[finite] ** 2).mean()) or 1e-30
    return max(float(squares.mean()), float(squares.max()) / 4096) / scale


def samples(chain: Chain, parts: Parts, rows: Rows) -> Iterable[ops.Sample]:
    """Flat with special values; operands that repeat in several ways; rows longer than a block; 7 active of 16 rows."""
    n = len(chain.dtypes)
    same: Shapes = ((101,),) * n
    yield _sample("101 with special values", chain, parts, rows, same, special=True)
    for turn in range(2):
        shapes = _repeating(chain, parts, ((3, 5, 37),) * n, ((37,), (5, 1), ()), turn)
        yield _sample(f"3x5x37, the others {' '.join(map(str, shapes))}", chain, parts, rows, shapes)
    long = _repeating(chain, parts, ((2, _COLUMNS),) * n, ((_COLUMNS,), (2, 1)), n)
    yield _sample(f"2x{_COLUMNS}", chain, parts, rows, long)
    yield _active(chain, parts, rows)


def _specs(chain: Chain, shapes: Sequence[Sequence[Dim]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tuple(s), d) for s, d in zip(shapes, chain.dtypes, strict=True))


def _accepts(chain: Chain, parts: Parts, shapes: Sequence[Sequence[Dim]], whole: Sequence[Dim]) -> bool:
    """Whether every step gives the whole shape."""
    specs = list(_specs(chain, shapes))
    for step in chain.steps:
        specs += parts[step.op].infer(tuple(specs[i] for i in step.operands), step.attrs)
    return all(spec.shape == tuple(whole) for spec in specs[len(shapes) :])


def _repeating(chain: Chain, parts: Parts, whole: Shapes, others: Shapes, turn: int) -> Shapes:
    """As many operands as may repeat do, the first of them from the `turn`th on."""
    shapes = list(whole)
    for i in range(len(shapes)):
        at = (i + turn) % len(shapes)
        tried = [*shapes[:at], others[(i + turn) % len(others)], *shapes[at + 1 :]]
        if _accepts(chain, parts, tried, whole[0]):
            shapes = tried
    return tuple(shapes)


def _sample(name: str, chain: Chain, parts: Parts, rows: Rows, shapes: Shapes, special: bool = False) -> ops.Sample:
    """Inputs whose whole numbers and truths do not hang by an ulp, as far as some tries find them."""
    for seed in range(_TRIES):
        rng = np.random.default_rng(seed)
        inputs = tuple(_draw(chain, rows, rng, i, shape, special) for i, shape in enumerate(shapes))
        if _steady(chain, inputs, parts):
            break
    return ops.Sample(name, inputs)


def _draw(
    chain: Chain, rows: Rows, rng: np.random.Generator, index: int, shape: tuple[int, ...], special: bool
) -> ops.Array:
    """An input as the first op that reads it wants its operands drawn."""
    step = next(step for step in chain.steps if index in step.operands)
    dtype = chain.dtypes[index]
    drawn = formula_samples.draw(rows[step.op], rng, step.operands.index(index), dtype, shape)
    if special and dtype.is_float:
        odd = rng.permutation(formula_samples.specials(1, dtype)[0])
        drawn[: len(odd)] = odd
    return drawn


def _steady(chain: Chain, inputs: Sequence[ops.Array], parts: Parts) -> bool:
    """Whether results that are no floats, and which floats are finite, stay as they are when inexact parts are off a little."""
    for a, b in zip(computed(chain, inputs, parts), nudged(chain, inputs, parts), strict=True):
        if a.dtype.kind in "iub" and not np.array_equal(a, b):
            return False
        with np.errstate(all="ignore"):
            if not np.array_equal(np.isfinite(a.astype(np.float32)), np.isfinite(b.astype(np.float32))):
                return False
    return True


def _active(chain: Chain, parts: Parts, rows: Rows) -> ops.Sample:
    tokens = Extent("tokens", 16)
    n = len(chain.dtypes)
    shapes = _repeating(chain, parts, ((16, 2, 33),) * n, ((2, 33), (33,)), 0)
    made = _sample("7 of 16", chain, parts, rows, shapes)
    dims = [(tokens, *s[1:]) if len(s) == 3 else s for s in shapes]
    return ops.Sample(made.name, made.inputs, {}, _specs(chain, dims), {tokens: 7})


def error_samples(chain: Chain) -> Iterable[ops.ErrorSample]:
    """A tensor too many, and one of another dtype."""
    whole = _specs(chain, [(2, 8)] * len(chain.dtypes))
    yield ops.ErrorSample((*whole, whole[-1]), {}, "wanted tensors of")
    other = boolean if chain.dtypes[-1] != boolean else f32
    yield ops.ErrorSample((*whole[:-1], TensorSpec((2, 8), other)), {}, "wanted tensors of")

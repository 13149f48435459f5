"""Samples of chains of elementwise ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from camshaft.dtypes import boolean, f32
from camshaft.extent import Extent
from camshaft.ops import op as ops
from camshaft.ops.elementwise.samples import draw, specials
from camshaft.ops.kernels.blocks import BLOCK
from camshaft.ops.spec import Dim, TensorSpec

if TYPE_CHECKING:
    from camshaft.ops.elementwise.chains.reference import Parts
    from camshaft.ops.elementwise.chains.text import Chain

Shapes = tuple[tuple[int, ...], ...]
_TRIES = 16


def chain_samples(chain: Chain, parts: Parts) -> Iterable[ops.Sample]:
    """Flat with special values; inputs that broadcast in several ways; rows longer than a block; 7 active of 16 rows."""
    n = len(chain.dtypes)
    same: Shapes = ((101,),) * n
    yield _sample("101 with special values", chain, parts, same, special=True)
    for first in range(2):
        shapes = _repeating(chain, parts, ((3, 5, 37),) * n, ((37,), (5, 1), ()), first)
        yield _sample(f"3x5x37, the others {' '.join(map(str, shapes))}", chain, parts, shapes)
    long = _repeating(chain, parts, ((2, (BLOCK + 17)),) * n, (((BLOCK + 17),), (2, 1)), n)
    yield _sample(f"2x{(BLOCK + 17)}", chain, parts, long)
    yield _active_chain(chain, parts)


def _specs(chain: Chain, shapes: Sequence[Sequence[Dim]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(tuple(s), d) for s, d in zip(shapes, chain.dtypes, strict=True))


def _accepts(chain: Chain, parts: Parts, shapes: Sequence[Sequence[Dim]], shape: Sequence[Dim]) -> bool:
    """Whether every step's result has the shape `shape`."""
    specs = list(_specs(chain, shapes))
    for step in chain.steps:
        specs += parts[step.op].op.infer(tuple(specs[i] for i in step.operands), step.attrs)
    return all(spec.shape == tuple(shape) for spec in specs[len(shapes) :])


def _repeating(chain: Chain, parts: Parts, full: Shapes, others: Shapes, first: int) -> Shapes:
    """The shapes `full` with as many as possible replaced by one of `others`, which broadcasts; tried from input `first` on."""
    shapes = list(full)
    for i in range(len(shapes)):
        at = (i + first) % len(shapes)
        tried = [*shapes[:at], others[(i + first) % len(others)], *shapes[at + 1 :]]
        if _accepts(chain, parts, tried, full[0]):
            shapes = tried
    return tuple(shapes)


def _sample(name: str, chain: Chain, parts: Parts, shapes: Shapes, special: bool = False) -> ops.Sample:
    """Inputs for which no integer or boolean result depends on an ulp, if some tries find them."""
    for seed in range(_TRIES):
        rng = np.random.default_rng(seed)
        inputs = tuple(_draw_input(chain, parts, rng, i, shape, special) for i, shape in enumerate(shapes))
        if _steady(chain, inputs, parts):
            break
    return ops.Sample(name, inputs)


def _draw_input(
    chain: Chain, parts: Parts, rng: np.random.Generator, index: int, shape: tuple[int, ...], special: bool
) -> ops.Array:
    """An input drawn from the distribution of the first op that reads it."""
    step = next(step for step in chain.steps if index in step.operands)
    dtype = chain.dtypes[index]
    drawn = draw(parts[step.op].row, rng, step.operands.index(index), dtype, shape)
    if special and dtype.is_float:
        odd = rng.permutation(specials(1, dtype)[0])
        drawn[: len(odd)] = odd
    return drawn


def _steady(chain: Chain, inputs: Sequence[ops.Array], parts: Parts) -> bool:
    """Whether integer and boolean results, and which floats are finite, stay the same when inexact parts are off a little."""
    from camshaft.ops.elementwise.chains.reference import computed, perturbed

    for a, b in zip(computed(chain, inputs, parts), perturbed(chain, inputs, parts), strict=True):
        if a.dtype.kind in "iub" and not np.array_equal(a, b):
            return False
        with np.errstate(all="ignore"):
            if not np.array_equal(np.isfinite(a.astype(np.float32)), np.isfinite(b.astype(np.float32))):
                return False
    return True


def _active_chain(chain: Chain, parts: Parts) -> ops.Sample:
    tokens = Extent("tokens", 16)
    n = len(chain.dtypes)
    shapes = _repeating(chain, parts, ((16, 2, 33),) * n, ((2, 33), (33,)), 0)
    made = _sample("7 of 16", chain, parts, shapes)
    dims = [(tokens, *s[1:]) if len(s) == 3 else s for s in shapes]
    return ops.Sample(made.name, made.inputs, {}, _specs(chain, dims), {tokens: 7})


def chain_error_samples(chain: Chain) -> Iterable[ops.ErrorSample]:
    """A tensor too many, and one of another dtype."""
    specs = _specs(chain, [(2, 8)] * len(chain.dtypes))
    yield ops.ErrorSample((*specs, specs[-1]), {}, "wanted tensors of")
    other = boolean if chain.dtypes[-1] != boolean else f32
    yield ops.ErrorSample((*specs[:-1], TensorSpec((2, 8), other)), {}, "wanted tensors of")

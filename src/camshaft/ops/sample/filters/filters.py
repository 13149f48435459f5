"""Filters of logits that come before sample: top_n_sigma, top_k_top_p, typical_p, xtc, mirostat and token_mask, a
row for each.

Each takes logits [R, n] and its parameters per row. Tokens that it removes get the lowest finite number, which sample never draws
unless all tokens have it. Probabilities are softmax(logits), without a temperature, as llama.cpp's filters have them. All but
top_k_top_p and typical_p, which order tokens, and token_mask are composed of other ops.
"""

from __future__ import annotations

from math import log
from typing import Any

import numpy as np

from camshaft.dtypes import f32, i32, u32
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels import blocks
from camshaft.ops.sample.filters import truncated, typical
from camshaft.ops.sample.filters.frame import Filter, op_of
from camshaft.ops.sample.kept import LOWEST, WORD
from camshaft.ops.sample.uniform import drawn

# The smallest difference of a logit to the largest one that counts: e^-1000 is 0, and 0 times it is not a NaN.
_LEAST = -1000.0


def log_softmax(x: ops.Array) -> ops.Array:
    """ln(softmax(x)) of one row, in float64."""
    z = np.maximum(x.astype(np.float64) - max(x.max(), LOWEST), _LEAST)
    found: ops.Array = z - np.log(np.exp(z).sum())
    return found


def _log_softmax(f: Any, logits: Any) -> Any:
    z = f.maximum(logits - f.max(logits, axes=-1, keepdims=True), np.float32(_LEAST))
    return z - f.log(f.sum(f.exp(z), axes=-1, keepdims=True))


def _column(x: Any) -> Any:
    return x.reshape((*x.shape, 1))


def _ids(logits: Any) -> ops.Array:
    return np.arange(logits.shape[1], dtype=np.int32)


def _kept(f: Any, keep: Any, logits: Any) -> Any:
    return f.where(keep, logits, np.float32(LOWEST))


def _typical_keeps(x: ops.Array, share: float) -> ops.Array:
    if (x == np.inf).any():  # no other token has a probability
        return np.asarray((x == np.inf) | ~(share < 1))
    logs = log_softmax(x)
    p = np.exp(logs)
    shift = np.abs(-logs + (p * logs).sum())
    order = np.argsort(shift, kind="stable")
    reached = np.flatnonzero(np.cumsum(p[order]) > share)
    keep: ops.Array = shift <= shift[order[reached[0]]] if share < 1 and len(reached) else np.ones(len(x), bool)
    return keep


def _typical_p(f: Any, logits: Any, p: Any) -> Any:
    rows, n = logits.shape
    logs = _log_softmax(f, logits)
    each = f.exp(logs)
    shift = f.abs(f.sum(each * logs, axes=-1, keepdims=True) - logs)
    nearer = f.less(shift.reshape((rows, 1, n)), shift.reshape((rows, n, 1)))
    before = f.sum(f.where(nearer, each.reshape((rows, 1, n)), np.float32(0)), axes=-1)
    return _kept(
        f, f.logical_or(f.less_equal(before, _column(p)), f.logical_not(f.less(_column(p), np.float32(1)))), logits
    )


def _top_n_sigma_keeps(x: ops.Array, n_sigma: float) -> ops.Array:
    z = x.astype(np.float64)
    some = z[z > LOWEST]
    with np.errstate(invalid="ignore"):
        limit = z.max() - float(n_sigma) * some.std() if len(some) else -np.inf
    keep: ops.Array = ~(z < limit) | (not n_sigma > 0)
    return keep


def _top_n_sigma(f: Any, logits: Any, n_sigma: Any) -> Any:
    some = f.greater(logits, np.float32(LOWEST))
    n = f.sum(f.where(some, np.float32(1), np.float32(0)), axes=-1, keepdims=True)
    mean = f.sum(f.where(some, logits, np.float32(0)), axes=-1, keepdims=True) / n
    off = f.where(some, logits - mean, np.float32(0))
    most = f.max(f.abs(off), axes=-1, keepdims=True)  # so that no square overflows
    sigma = most * f.sqrt(f.sum(f.square(off / most), axes=-1, keepdims=True) / n)
    below = f.less(logits, f.max(logits, axes=-1, keepdims=True) - _column(n_sigma) * sigma)
    return _kept(f, f.logical_not(f.logical_and(below, f.greater(_column(n_sigma), np.float32(0)))), logits)


def _xtc_keeps(x: ops.Array, probability: float, threshold: float, seed: ops.Array) -> ops.Array:
    p = np.exp(log_softmax(x))
    above = np.flatnonzero(p >= threshold)
    keep = np.ones(len(x), bool)
    if len(above) > 1 and drawn(seed, 1)[0] < probability:
        keep[above] = False
        keep[above[np.flatnonzero(p[above] == p[above].min())[-1]]] = True
    return keep


def _xtc(f: Any, logits: Any, probability: Any, threshold: Any, seed: Any) -> Any:
    p, ids = f.exp(_log_softmax(f, logits)), _ids(logits)
    above = f.greater_equal(p, _column(threshold))
    least = f.min(f.where(above, p, np.float32(2)), axes=-1, keepdims=True)
    last = f.max(f.where(f.equal(p, least), ids, np.int32(-1)), axes=-1, keepdims=True)
    happens = f.less(f.uniform(seed, n=1), _column(probability))
    removed = f.logical_and(f.logical_and(above, f.not_equal(last, ids)), happens)
    return _kept(f, f.logical_not(removed), logits)


def _mirostat_keeps(x: ops.Array, mu: float) -> ops.Array:
    keep: ops.Array = (log_softmax(x) >= -float(mu) * log(2)) | (np.arange(len(x)) == x.argmax())
    return keep


def _mirostat(f: Any, logits: Any, mu: Any) -> Any:
    likely = f.greater_equal(_log_softmax(f, logits), _column(mu) * np.float32(-log(2)))
    first = f.equal(f.argmax(logits, axis=-1, keepdims=True), _ids(logits))
    return _kept(f, f.logical_or(likely, first), logits)


def _mask_keeps(x: ops.Array, mask: ops.Array) -> ops.Array:
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(x)].astype(bool)


def _token_mask(f: Any, logits: Any, mask: Any) -> Any:
    rows, n = logits.shape
    powers = 2 ** np.arange(WORD, dtype=np.uint32)
    bits = f.remainder(f.floor_divide(_column(mask), powers), np.uint32(2))
    allowed = f.equal(bits.reshape((rows, mask.shape[1] * WORD))[:, :n], np.uint32(1))
    return _kept(f, allowed, logits)


@kernel
def mask_block(k: Tracer, logits: Array, mask: Array, out: Array, *, columns: int, block: int) -> None:
    # y[r, c] = bit c % 32 of mask[r, c // 32] ? logits[r, c] : the lowest number
    row, first = k.program(0), k.program(1) * block
    for c in k.lanes(first, k.minimum(first + block, columns)):
        bit = (k.gather(mask, row, c // WORD) >> (c % WORD).to(u32)) & 1
        out[row, c] = k.select(bit == 1, logits[row, c], LOWEST)


def _build_mask(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits = node.inputs[0]
    columns = logits.bounds[1]
    block = blocks.even_block(columns)
    grid = ops.Cells(logits.shape[0]), ops.Cells(columns, per=block)
    arrays = ops.read(0), ops.read(1), ops.write(0)
    return ops.Build((ops.Launch(mask_block, arrays, grid, {"columns": columns, "block": block}),))


_MASK_BLOCKS = ops.KernelVariant("row_blocks", ops.EVERYWHERE, _build_mask)


ROWS = (
    Filter(
        "top_n_sigma",
        "removes the tokens more than n_sigma standard deviations of the finite logits below the greatest (Tang et al., 2024)",
        (("n_sigma", f32, ()),),
        _top_n_sigma_keeps,
        _top_n_sigma,
        ((1.0,), (0.5,), (2.0,), (0.0,), (-1.0,)),
    ),
    Filter(
        "top_k_top_p",
        "keeps the tokens that sample's top_k, then top_p, then min_p keep at temperature 1",
        (("top_k", i32, ()), ("top_p", f32, ()), ("min_p", f32, ())),
        truncated.keeps,
        lambda f, x, k, p, m: truncated.decomposed(f, x, k, p, m, _kept),
        ((0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.2), (12, 0.9, 0.05), (3, 0.5, 0.5)),
        (truncated.VARIANT,),
    ),
    Filter(
        "typical_p",
        "keeps token i if those with a smaller |ln p + entropy| have at most the mass p together (Meister et al., 2022)",
        (("p", f32, ()),),
        _typical_keeps,
        _typical_p,
        ((0.3,), (0.95,), (1.0,), (0.7,), (0.0,)),
        (typical.VARIANT,),
    ),
    Filter(
        "xtc",
        "with the given probability, removes all tokens with p >= threshold but the least likely of them",
        (("probability", f32, ()), ("threshold", f32, ()), ("seed", u32, (3,))),
        _xtc_keeps,
        _xtc,
        (
            (1.0, 0.05, (1, 2, 3)),
            (0.5, 0.1, (4, 5, 6)),
            (0.5, 0.01, (7, 8, 9)),
            (0.0, 0.1, (1, 1, 1)),
            (1.0, 0.001, (1, 0, 0)),
        ),
    ),
    Filter(
        "mirostat",
        "removes the tokens with a surprise -log2 p above mu, but the likeliest (version 2; Basu et al., 2021)",
        (("mu", f32, ()),),
        _mirostat_keeps,
        _mirostat,
        ((10.0,), (3.03,), (5.05,), (0.0,), (-2.0,)),
    ),
    Filter(
        "token_mask",
        "removes the tokens i whose bit i % 32 of word i // 32 is 0",
        (("mask", u32, ("n",)),),
        _mask_keeps,
        _token_mask,
        ((0x8421F00F,), (0xFFFFFFFF,), (0,), (0x80000001,)),
        (_MASK_BLOCKS,),
    ),
)
OPS = {row.name: op_of(row) for row in ROWS}

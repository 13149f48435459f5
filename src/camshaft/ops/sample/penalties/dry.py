"""dry: makes tokens less likely that would continue a repetition of the text ("don't repeat yourself", as in llama.cpp).

If the last L ids occurred before, and a token t came after them there, then with L >= allowed_length the logit of t loses
multiplier * base^(L - allowed_length), for the largest such L. ids [R, m] are the text's last tokens, the latest last; base is
at least 1. An id of -1 matches nothing: it pads a short text in front, and replaces a sequence breaker (a newline, say).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.lang import Array, Tracer, Value, kernel
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.kernels import blocks
from camshaft.ops.parameters import Parameters
from camshaft.ops.sample.penalties.listed import change_listed, expect_listed
from camshaft.ops.spec import TensorSpec

# The largest exponent of e: f32 has no greater powers.
_MOST = 88.0


@kernel
def repeated_lengths(k: Tracer, ids: Array, lengths: Array, *, m: int) -> None:
    # lengths[r, j] = the largest L with ids[r, j - i] = ids[r, m - 1 - i] for all i < L
    row, still = k.program(0), k.var(1, i32)
    for j in k.lanes(m):
        lengths[row, j] = 0
    for i in k.range(m - 1):
        token = ids[row, m - 1 - i]
        with k.when((still.value > 0) & (token >= 0)):
            longer = k.accumulator("sum", i32)
            for j in k.lanes(m - 1):  # from 0, so that a place is always the same lane's
                with k.when(j >= i):
                    goes_on = (lengths[row, j] == i.to(i32)) & (ids[row, j - i] == token)
                    lengths[row, j] = k.select(goes_on, i.to(i32) + 1, lengths[row, j])
                    longer += goes_on.to(i32)
            still.set(k.lanes_sum(longer))
        with k.when(token < 0):
            still.set(0)


@kernel
def penalize_repeats(
    k: Tracer, logits: Array, ids: Array, multiplier: Array, base: Array, allowed: Array, lengths: Array, out: Array, *,
    columns: int, block: int, m: int,
) -> None:  # fmt: skip
    # y[r, c] = logits[r, c] - the largest penalty of the places after which c came
    row = k.program(0)
    log_base = k.log(base[row])

    def penalized(j: Value, logit: Value, so_far: Value) -> Value:
        beyond = lengths[row, j - 1] - allowed[row]
        penalty = multiplier[row] * k.exp(k.minimum(log_base * beyond.to(f32), _MOST))
        return k.select(beyond >= 0, k.minimum(so_far, logit - penalty), so_far)

    change_listed(k, logits, ids, out, columns=columns, block=block, listed=(1, m), change=penalized)


_PARAMETERS = (("multiplier", f32), ("base", f32), ("allowed_length", i32))


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    wanted = "logits [R, n], ids [R, m], multiplier [R], base [R] and allowed_length [R]"
    ops.expect(len(specs) == 5 and not attrs, "dry", (*specs, *attrs), wanted)
    logits, ids = specs[:2]
    expect_listed("dry", logits, ids)
    for spec, (name, dtype) in zip(specs[2:], _PARAMETERS, strict=True):
        want = TensorSpec(logits.shape[:1], dtype)
        ops.expect(spec == want, "dry", spec, f"{name} of {want}")
    return (logits,)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    logits, out = inputs[0], inputs[0].astype(np.float64)
    for row, (_, ids, multiplier, base, allowed) in enumerate(zip(*inputs, strict=True)):
        last = len(ids) - 1
        for j in range(last):
            n = 0
            while n <= j and ids[j - n] == ids[last - n] >= 0:
                n += 1
            token = ids[j + 1]
            if n >= allowed and 0 <= token < logits.shape[1]:
                penalty = float(multiplier) * np.exp(min(float(n - allowed) * np.log(float(base)), _MOST))
                out[row, token] = min(out[row, token], float(logits[row, token]) - penalty)
    return (out,)


def _build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
    logits, ids = node.inputs[:2]
    columns, m = logits.bounds[1], ids.bounds[1]
    block, lengths = blocks.even_block(columns), TensorSpec(ids.bounds, i32)
    rows = ops.Cells(logits.shape[0])
    first = ops.Launch(repeated_lengths, (ops.read(1), ops.scratch(0, "update")), (rows,), {"m": m})
    arrays = (*(ops.read(i) for i in range(5)), ops.scratch(0, "read"), ops.write(0))
    grid = rows, ops.Cells(columns, per=block)
    second = ops.Launch(penalize_repeats, arrays, grid, {"columns": columns, "block": block, "m": m})
    return ops.Build((first, second), (lengths,))


def _inputs(rng: np.random.Generator, rows: int, n: int, m: int) -> tuple[ops.Array, ...]:
    """Texts of few different tokens, so that they repeat themselves; some are short, some have breakers."""
    ids = rng.integers(0, min(n, 3), (rows, m)).astype(np.int32)
    ids[rng.random((rows, m)) < 0.05], ids[:, : m // 4] = -1, -1
    logits = rng.normal(size=(rows, n)).astype(np.float32)
    multiplier, base = (rng.uniform(low, 2, rows).astype(np.float32) for low in (0.0, 1.0))
    return logits, ids, multiplier, base, rng.integers(0, 4, rows).astype(np.int32)


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(22)
    for rows, n, m in ((1, 1, 1), (4, 15, 17), (3, 33, 40), (2, blocks.BLOCK + 1, 16)):
        yield ops.Sample(f"{rows}x{n}, {m} ids", _inputs(rng, rows, n, m))
    same = np.zeros((2, 60), np.int32)
    same[1, 30] = -1
    logits = np.zeros((2, 5), np.float32)
    long = np.full(2, 1, np.float32), np.full(2, 8, np.float32), np.full(2, 2, np.int32)
    yield ops.Sample("a token 60 times", (logits, same, *long))
    yield partly_active(ops.Sample("7 of 16", _inputs(rng, 16, 33, 12)), 7, extent="rows")


def _error_samples() -> Iterable[ops.ErrorSample]:
    logits, ids, number, length = (
        TensorSpec((2, 8), f32),
        TensorSpec((2, 4), i32),
        TensorSpec((2,), f32),
        TensorSpec((2,), i32),
    )
    yield ops.ErrorSample((logits, ids), {}, "wanted logits")
    yield ops.ErrorSample((logits, TensorSpec((3, 4), i32), number, number, length), {}, "wanted ids of i32")
    yield ops.ErrorSample((logits, ids, number, TensorSpec((3,), f32), length), {}, "wanted base of")
    yield ops.ErrorSample((logits, ids, number, number, number), {}, "wanted allowed_length of")


OP = ops.Op(
    name="dry",
    vjp=ops.NoGradient("its penalties depend on integers"),
    formula="y = l - multiplier base^(L - allowed_length) for tokens that came after the last L >= allowed_length ids before",
    parameters=Parameters("logits ids multiplier base allowed_length"),
    infer=_infer,
    reference=_reference,
    variants=(ops.KernelVariant("lengths", ops.EVERYWHERE, _build),),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 1e-10},
)

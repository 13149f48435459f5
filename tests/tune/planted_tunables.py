"""An op, y = 2 x, with one variant whose tunable `way` is a fault for some values. Child processes import it from here."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from camshaft.dtypes import f32
from camshaft.errors import BackendError
from camshaft.lang import Array, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.spec import TensorSpec

RIGHT, WRONG, HANGS, REFUSED, RAISES, TWIN, EXITS, WRONG_AT_16 = range(8)
SLOW, SLOWER = 4096, 8192


@kernel
def double(k: Tracer, x: Array, out: Array, *, n: int, add: float, passes: int) -> None:
    # out[i] = 2 x[i] + add; every pass takes its time, and nothing is left of it
    for i in k.lanes(n):
        out[i] = x[i]
    for _ in k.range(passes):
        for i in k.lanes(n):
            out[i] = out[i] + 1.0
    for i in k.lanes(n):
        out[i] = out[i] - float(passes) + x[i] + add


def _build(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> ops.Build:
    if values["way"] == HANGS:
        time.sleep(3600)
    if values["way"] == RAISES:
        raise BackendError("out of registers")
    if values["way"] == EXITS:
        raise SystemExit(7)
    n = node.inputs[0].bounds[0]
    wrong = values["way"] == WRONG or (values["way"] == WRONG_AT_16 and n == 16)
    passes = values["passes"] + (values["way"] == WRONG_AT_16)  # another code than the right one's at every size
    constants = {"n": n, "add": 1.0 if wrong else 0.0, "passes": passes}
    return ops.Build((ops.Launch(double, (ops.read(0), ops.write(0)), (ops.Cells(1),), constants),))


def _defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    return {"way": RIGHT, "passes": SLOW}


def _refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    return "no such way" if values["way"] == REFUSED else None


def tunables(*ways: int, passes: tuple[int, ...] = (SLOW,)) -> ops.Tunables:
    """Those ways and passes over the array."""
    return ops.Tunables({"way": ways, "passes": passes}, _defaults, _build, _refusal)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1 and specs[0].dtype == f32, "double", specs, "x of f32")
    return specs


def _samples() -> Iterable[ops.Sample]:
    for n in (1, 16, 33):
        yield ops.Sample(f"n={n}", (np.arange(1, n + 1, dtype=np.float32),))


def _by_numpy(node: ops.NodeSpec, inputs: Sequence[ops.Array], outputs: Sequence[ops.Array]) -> None:
    time.sleep(0.01)
    np.multiply(inputs[0], 2, out=outputs[0])


EVERY = tunables(*range(8), passes=(1, SLOW, SLOWER))
LOOPS = ops.KernelVariant(
    "loops",
    frozenset({"simd"}),
    lambda node, target: _build(node, target, _defaults(node, target)),
    cost=lambda node, target: 2.0,
    tunables=EVERY,
)
SLEEPS = ops.KernelVariant(
    "right_but_slow", frozenset({"simd"}), lambda node, target: ops.HostCall(_by_numpy), cost=lambda node, target: 1.0
)
OP = ops.Op(
    name="double",
    formula="y = 2 x",
    infer=_infer,
    reference=lambda inputs, attrs: (inputs[0].astype(np.float64) * 2,),
    variants=(LOOPS, SLEEPS),
    samples=_samples,
    error_samples=tuple,
    tolerance={"f32": 1e-12},
)
NODE = ops.NodeSpec((TensorSpec((33,), f32),), (TensorSpec((33,), f32),), {})


def op_with(*others: ops.KernelVariant, ways: tuple[int, ...], passes: tuple[int, ...] = (SLOW,)) -> ops.Op:
    """The op with `loops` that has these values (left out without ways), and others. A child process sees all there are."""
    loops = (replace(LOOPS, tunables=tunables(*ways, passes=passes)),) if ways else ()
    return replace(OP, variants=(*loops, *others))

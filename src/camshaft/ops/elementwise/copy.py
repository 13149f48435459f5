"""copy: y = x, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from camshaft.dtypes import boolean, f32
from camshaft.ops import op as ops
from camshaft.ops.checks import EVERY, NUMBERS
from camshaft.ops.elementwise import samples
from camshaft.ops.elementwise.frame import Formula, op_of


def _samples() -> Iterable[ops.Sample]:
    yield from samples.samples(ROW)
    yield ops.Sample("a subnormal", (np.array([np.nan, -0.0, 1e-40], np.float32),))


ROW = Formula(
    name="copy",
    text="y = x",
    compute=lambda k, x: x,
    numpy=lambda x: x,
    dtypes=EVERY,
    arity=1,
    tolerance={f32.name: 0.0},
    draws=(samples.normal,),
    sampled=(*NUMBERS[1:], boolean),
    structure=True,
    samples=_samples,
    moves=lambda node: {},
    vjp=lambda f, dy, y, x: dy,
    flops=0.0,
)
OP = op_of(ROW, __name__)

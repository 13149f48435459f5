"""The schedule's values: what they count and what they refuse. And the homes that spread small thunks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_kernels import add, buffer, kernel, thunk

from camshaft.errors import CamshaftError, PlanError
from camshaft.extent import Extent
from camshaft.plan.buffers import BufferSlice, BufferUse, Lifetime
from camshaft.plan.memory.arena import make_schedule
from camshaft.plan.runtime.execute import homes
from camshaft.plan.schedule import Programs, Schedule, Thunk, copy_thunk

A, B = buffer("a", 128, Lifetime.IO), buffer("b", 128, Lifetime.IO)
N = Extent("n", 100)


@given(st.integers(0, 50), st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 64)), max_size=3), st.data())
def test_programs_multiply_ceilings(constant: int, pairs: list[tuple[int, int]], data: st.DataObject) -> None:
    extents = [Extent(f"e{i}", bound) for i, (bound, _) in enumerate(pairs)]
    programs = Programs(constant, tuple((e, divisor) for e, (_, divisor) in zip(extents, pairs, strict=True)))
    active = {extent: data.draw(st.integers(0, extent.bound)) for extent in extents}
    wanted = constant
    for extent, divisor in programs.factors:
        wanted *= len(range(0, active[extent], divisor))
    assert programs.count(active) == wanted <= programs.bound


def kernel_thunk(**changes: object) -> Thunk:
    fields = {
        "name": "k",
        "op": "o",
        "variant": "v",
        "reason": "",
        "kind": "kernel",
        "entry": kernel("tick"),
        "args": (A.slice(),),
        "uses": (BufferUse(A.slice(), "write"),),
        "programs": Programs(1),
    }
    return Thunk(**(fields | changes))  # type: ignore[arg-type]


REFUSED: dict[str, Callable[[], object]] = {
    "wanted a non-empty string": lambda: Extent("", 1),
    "got the bound 0": lambda: Extent("n", 0),
    "got the bound True": lambda: Extent("n", True),
    "2\\*\\*63": lambda: Extent("n", 2**63),
    "nbytes -1": lambda: buffer("x", -1),
    "power of two": lambda: type(A)("x", 1, Lifetime.IO, 48),
    "it has 128 bytes": lambda: A.slice(100, 29),
    "slice \\[-1": lambda: BufferSlice(A, -1, 4),
    "constant of 0 or more": lambda: Programs(-1),
    "divisors of 1 or more": lambda: Programs(1, ((N, 0),)),
    "has 4 factors": lambda: Programs(1, ((N, 1),) * 4),
    "outside every use": lambda: kernel_thunk(args=(B.slice(),)),
    "outside every": lambda: kernel_thunk(uses=(BufferUse(A.slice(0, 64), "write"),)),
    "wanted a compiled kernel": lambda: kernel_thunk(entry=print),
    "wanted a Python callable": lambda: kernel_thunk(kind="host", entry=None),
    "exactly one program": lambda: kernel_thunk(kind="host", entry=print, programs=Programs(2)),
    "two slices of equal size": lambda: kernel_thunk(kind="copy", entry=None),
    "do not overlap": lambda: copy_thunk("c", A.slice(0, 64), A.slice(32, 64)),
    "of equal size": lambda: copy_thunk("c", A.slice(0, 64), B.slice(0, 63)),
    "1 thunks and 0 wait flags": lambda: Schedule((kernel_thunk(),), (), (), (A,)),
    "one name": lambda: Schedule((), (), (N, Extent("n", 3)), ()),
    "does not list: \\['n'\\]": lambda: Schedule((kernel_thunk(args=(A.slice(), N)),), (False,), (), (A,)),
    "does not list: \\['a'\\]": lambda: Schedule((kernel_thunk(),), (False,), (), ()),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_makes_no_sense_is_refused(words: str) -> None:
    with pytest.raises(CamshaftError, match=words):
        REFUSED[words]()


def test_too_many_programs_are_refused_when_bound() -> None:
    from camshaft.plan.runtime.execute import bind

    huge = Extent("huge", 2**40)
    item = thunk("k", "tick", (), programs=Programs(2**23, ((huge, 1),)))
    with pytest.raises(PlanError, match="2\\*\\*62"):
        bind(*make_schedule([item]))


def test_buffers_are_equal_only_to_themselves() -> None:
    assert buffer("x", 8) != buffer("x", 8)
    assert Extent("n", 8) == Extent("n", 8) != Extent("n", 9)


def test_small_independent_thunks_spread_over_workers_and_dependent_ones_stay() -> None:
    outs = [buffer(f"o{i}", 64, Lifetime.IO) for i in range(5)]
    apart = [add(A.slice(0, 64), B.slice(), out.slice()) for out in outs]
    assert list(homes(make_schedule(apart)[0], 3)) == [0, 1, 2, 0, 1]
    after = [add(outs[0].slice(), outs[1].slice(), A.slice(0, 64)), add(A.slice(0, 64), B.slice(), outs[2].slice())]
    assert list(homes(make_schedule([*apart, *after])[0], 3))[5:] == [0, 0]

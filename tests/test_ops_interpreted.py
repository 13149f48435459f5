"""The interpreter against the compiled kernels: every variant's smallest samples, programs in shuffled order, races found."""

from __future__ import annotations

import pytest

from camshaft.backends.cpu.device import cpu_device
from camshaft.lang.interpreter.interpret import interpret
from camshaft.ops.op import Launch
from camshaft.validation import run
from camshaft.validation.validate import check_outputs, error_between, node_of
from tests.support.compilers.op_kernels import arguments_at
from tests.support.samples import covering, elements, has_turn, is_row, on_cpu, smallest, usable, without

# Samples of a variant, the smallest: in the default run, then behind `full`, of others and of a row; those that show more than
# the rest of them. One lane takes as many steps as there are elements.
QUICK_ELEMENTS, QUICK = 800, 1
# A variant whose samples are all larger is behind `full`; tests/lang has the instructions of tiles.
QUICK_MOST = {"simd": 2500, "scalar": QUICK_ELEMENTS}
FULL_ELEMENTS, FULL, FULL_OF_ROWS = {"simd": 3000, "scalar": 1200}, 7, 2


def _is_quick(op, variant) -> bool:
    """Whether the default run has the variant. An unfused one has the kernels of another op's, which are there."""
    return has_turn(op, "interpreter", variant) and not variant.name.startswith("unfused_")


def _cases(op, variant, backend) -> list:
    there = usable(op, variant, cpu_device(backend))
    small = smallest(there, FULL_OF_ROWS if is_row(op) else FULL, FULL_ELEMENTS[backend])
    quick = covering(op, smallest(small, len(small), QUICK_ELEMENTS), most=_is_quick(op, variant) * QUICK)
    quick = [s for s in quick if elements(s) <= QUICK_MOST[backend]]
    full = without(covering(op, small), quick)
    name = f"{op.name}-{variant.name}-{backend}"
    return [
        pytest.param(op, variant, backend, sample, id=f"{name}-{sample.name}", marks=marks)
        for part, marks in ((quick, ()), (full, pytest.mark.full))
        for sample in part
    ]


CASES = on_cpu(_cases)


class Interpreted:
    """Stands in for a compiled kernel: reads the argument block as native code would, then interprets."""

    def __init__(self, launch, made, device) -> None:
        self._ir = made.request(launch).trace()
        self._made, self.address = made, 0  # code of a host device, as far as dispatch asks
        self._lanes = 1 if device.backend == "scalar" else launch.lanes or device.lanes

    def __call__(self, args: int, first: int, last: int) -> None:
        views, scalars = arguments_at(args, self._made)
        interpret(self._ir, views, scalars, lanes=self._lanes, programs=range(first, last), shuffle_seed=3)


@pytest.mark.parametrize(("op", "variant", "backend", "sample"), CASES)
def test_interpreter_agrees_with_compiled_code(op, variant, backend, sample, monkeypatch) -> None:
    device, node, native = cpu_device(backend), node_of(op, sample), run.compile_launch

    def substitute(launch, made, device):
        return Interpreted(launch, made, device) if isinstance(launch, Launch) else native(launch, made, device)

    compiled = run.run_variant(variant, node, device, sample.inputs, sample.extents)
    monkeypatch.setattr(run, "compile_launch", substitute)
    meant = run.run_variant(variant, node, device, sample.inputs, sample.extents)
    checked = check_outputs(op, variant, node, sample, meant)
    assert checked.max_error <= checked.tolerance
    for a, b in zip(compiled, meant, strict=True):
        if a.dtype.kind == "f":
            assert error_between(a, b, checked.tolerance) <= checked.tolerance

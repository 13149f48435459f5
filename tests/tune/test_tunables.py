"""The tunables of ops: every value, one at a time, is refused with a reason or right on the op's samples."""

from __future__ import annotations

import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.ops.op import KernelVariant, NodeSpec, Op, Sample
from camshaft.validation.cases import kinds_of
from camshaft.validation.validate import check_sample, node_of
from tests.support.samples import samples

SIMD = cpu_device("simd")
TUNABLE = [(op, v) for op in ops.all_ops() for v in op.variants if v.tunables is not None and "simd" in v.backends]
# One of each family of ops that share their tunables' code; those whose kernels take long to compile only when asked for.
QUICK = ("rms_norm", "add")
FULL = ("softmax", "residual_norm", "sum")
SLOW = ("silu_multiply", "matmul", "quantized_matmul", "attention")
MARKS = dict.fromkeys(QUICK, ()) | dict.fromkeys(FULL, pytest.mark.full) | dict.fromkeys(SLOW, pytest.mark.soak)


def cases(op: Op) -> list[tuple[Sample, NodeSpec]]:
    """The largest sample of the kinds that come first and last among the op's."""
    every = [(sample, node_of(op, sample)) for sample in samples(op.name)]
    by_kind: dict[str, tuple[Sample, NodeSpec]] = {}
    for sample, node in every:
        size = sum(spec.nbytes for spec in node.inputs)
        held = by_kind.get(kinds_of(node))
        if held is None or size > sum(spec.nbytes for spec in held[1].inputs):
            by_kind[kinds_of(node)] = sample, node
    return [next(iter(by_kind.values())), list(by_kind.values())[-1]]


@pytest.mark.parametrize(("op", "variant"), [pytest.param(o, v, id=f"{o.name}-{v.name}") for o, v in TUNABLE])
def test_values_rise_and_defaults_build_what_the_variant_does(op: Op, variant: KernelVariant) -> None:
    tunables = variant.tunables
    assert tunables is not None
    for name, values in tunables.values.items():
        assert list(values) == sorted(set(values)), name
    for _, node in cases(op):
        if variant.supports(node, SIMD) is None:
            defaults = tunables.defaults(node, SIMD)
            assert set(defaults) == set(tunables.values)
            assert tunables.build(node, SIMD, defaults) == variant.build(node, SIMD)


@pytest.mark.parametrize(
    ("op", "variant"),
    [pytest.param(o, v, id=f"{o.name}-{v.name}", marks=MARKS[o.name]) for o, v in TUNABLE if o.name in MARKS],
)
def test_every_value_is_refused_or_right(op: Op, variant: KernelVariant) -> None:
    tunables = variant.tunables
    assert tunables is not None
    tried = 0
    for name, values in tunables.values.items():
        for i, value in enumerate(values):
            tuned = variant.with_values({name: value})
            # One of the two samples for each value, the other if that refuses it: every second value begins with the last.
            for sample, node in cases(op)[:: -1 if i % 2 else 1]:
                refusal = tuned.supports(node, SIMD)
                if refusal is not None:
                    assert refusal.strip()
                    continue
                checked = check_sample(op, tuned, SIMD, sample)
                assert checked.max_error <= checked.tolerance, (tuned.label, sample.name)
                tried += 1
                break
    assert tried > len(tunables.values)


def test_the_ops_that_matter_have_tunables() -> None:
    assert {op.name for op, _ in TUNABLE} >= {*MARKS}

"""The table test on devices beside the CPU's own two: every op, variant and sample on each at hand, twice, with guard bytes.

Each claim ends as proved or as absent with a reason; the summary at the end of the run has a row per device (tests/conftest.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.registry import backend_named, device
from camshaft.validation.run import refusal_of
from camshaft.validation.validate import check_sample, node_of
from tests.support.needs import require
from tests.support.samples import in_turn, is_row, spread

# Devices that CI has: an absent one fails there. The others are tried where they are.
IN_CI = ("cpu:c", "webgpu")
NAMES = (*IN_CI, "cuda", "metal")
# Samples that prove a family's row on a device that starts a compiler for each kernel.
MOST_SAMPLES = {"cpu:c": 3, "webgpu": 4}
# ... and of ops with very many: each of those devices others (the CPU's own two run all: tests/test_ops.py), all behind `soak`.
SPREAD = {"quantized_matmul": 33, "matmul": 26, "attention": 17}
CASES = [
    pytest.param(name, op, variant, id=f"{name}-{op.name}-{variant.name}")
    for name in NAMES
    for op in ops.all_ops()
    for variant in op.variants
    if backend_named(name).name in variant.backends
]


def _tried(name, op, variant) -> list:
    """A device's share of those samples that are for the variant; all where none is."""
    samples = in_turn(op)
    if name not in IN_CI or op.name not in SPREAD:
        return samples
    fit = [s for s in samples if variant.supports(node_of(op, s), device(name)) is None]
    return spread(fit, SPREAD[op.name], IN_CI.index(name)) or samples


@pytest.mark.parametrize(("name", "op", "variant"), CASES)
def test_every_claim_is_proved_or_absent_with_a_reason(name, op, variant, record_property) -> None:
    _prove(name, op, variant, _tried, record_property)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "op", "variant"), [c for c in CASES if c.values[1].name in SPREAD])
def test_every_sample_on_every_device(name, op, variant, record_property) -> None:
    _prove(name, op, variant, lambda name, op, variant: in_turn(op), record_property)


def _prove(name, op, variant, tried, record_property) -> None:
    reason = backend_named(name).absent()
    if name in IN_CI:
        require(reason is None, f"{name}: {reason}")
    elif reason is not None:
        pytest.skip(f"{name}: {reason}")
    target, refusals, n_proved = device(name), [], 0
    for sample in tried(name, op, variant):
        if is_row(op) and n_proved == MOST_SAMPLES.get(name):
            break
        node = node_of(op, sample)
        refused = variant.supports(node, target) or refusal_of(variant, node, target)
        if refused is not None:
            refusals.append(refused)
            continue
        first, second = (check_sample(op, variant, target, sample) for _ in range(2))
        assert first.max_error <= first.tolerance, f"{sample.name}: error {first.max_error} above {first.tolerance}"
        for a, b in zip(first.outputs, second.outputs, strict=True):
            np.testing.assert_array_equal(
                a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8), err_msg=sample.name
            )
        n_proved += 1
    assert n_proved or all(r.strip() for r in refusals)
    record_property("claim", [name, f"{op.name} {variant.name}", "proved" if n_proved else refusals[0]])

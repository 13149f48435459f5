"""The table test on devices beside the CPU's own two: every op, variant and sample on each at hand, twice, with guard bytes.

Each claim ends as proved or as absent with a reason; the summary at the end of the run has a row per device (tests/conftest.py).
"""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.registry import backend_named, device
from camshaft.dispatch.run import refusal_of
from camshaft.dispatch.validate import check_sample, node_of
from tests.support.needs import require

# Devices that CI has: an absent one fails there. The others are tried where they are.
IN_CI = ("cpu:c", "webgpu")
NAMES = (*IN_CI, "cuda", "metal")
# Samples of a family's row, evenly apart, on a device that starts a compiler for each kernel; rows that stand for their family
# keep all of theirs.
MOST_SAMPLES, ALL_SAMPLES = {"cpu:c": 4}, ("add", "where", "sum")
CASES = [
    pytest.param(name, op, variant, id=f"{name}-{op.name}-{variant.name}")
    for name in NAMES
    for op in ops.all_ops()
    for variant in op.variants
    if backend_named(name).name in variant.backends
]


def chosen(name, op):
    samples = list(op.samples())
    n = len(samples)
    if ops.group_of(op.name) in ops.FAMILIES and op.name not in ALL_SAMPLES:
        n = min(MOST_SAMPLES.get(name, n), n)
    return [samples[(i + 1) * len(samples) // n - 1] for i in range(n)]


@pytest.mark.parametrize(("name", "op", "variant"), CASES)
def test_every_claim_is_proved_or_absent_with_a_reason(name, op, variant, record_property) -> None:
    reason = backend_named(name).absent()
    if name in IN_CI:
        require(reason is None, f"{name}: {reason}")
    elif reason is not None:
        pytest.skip(f"{name}: {reason}")
    target, refusals, n_proved = device(name), [], 0
    for sample in chosen(name, op):
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

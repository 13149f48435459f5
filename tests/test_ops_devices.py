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
from tests.support.samples import in_turn, is_row

# Devices that CI has: an absent one fails there. The others are tried where they are.
IN_CI = ("cpu:c", "webgpu")
NAMES = (*IN_CI, "cuda", "metal")
# Samples that prove a family's row on a device that starts a compiler for each kernel.
MOST_SAMPLES = {"cpu:c": 3, "webgpu": 4}
CASES = [
    pytest.param(name, op, variant, id=f"{name}-{op.name}-{variant.name}")
    for name in NAMES
    for op in ops.all_ops()
    for variant in op.variants
    if backend_named(name).name in variant.backends
]


@pytest.mark.parametrize(("name", "op", "variant"), CASES)
def test_every_claim_is_proved_or_absent_with_a_reason(name, op, variant, record_property) -> None:
    reason = backend_named(name).absent()
    if name in IN_CI:
        require(reason is None, f"{name}: {reason}")
    elif reason is not None:
        pytest.skip(f"{name}: {reason}")
    target, refusals, n_proved = device(name), [], 0
    for sample in in_turn(op):
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

"""The table test on devices beside the CPU's own two: every op, variant and sample on each at hand, twice, with guard bytes.

Each claim ends as proved or as absent with a reason; the summary at the end of the run has a row per device (tests/conftest.py).
"""

from __future__ import annotations

import pytest

from camshaft import ops
from camshaft.backends.registry import backend_named, device
from camshaft.validation.run import refusal_of
from camshaft.validation.validate import node_of
from tests.support.needs import require
from tests.support.samples import check_bits, covering, has_turn, in_turn, is_row, spread, usable, without

# Devices that CI has: an absent one fails there. The others are tried where they are.
IN_CI = ("cpu:c", "webgpu")
NAMES = (*IN_CI, "cuda", "metal")
# Samples of an op in the default run: one, as a software GPU compiles a kernel for up to 5 s, and cpu:c compiles the same trees
# as cpu:simd. tests/emit has each instruction. WebGPU has more of cast, which alone shows how each dtype is read.
MOST, OF_CAST = 1, 5
# Behind `full`: of a row, of an op, and of ops with very many; each of the devices has others. All behind `soak`.
ROW_SAMPLES, SAMPLES = 1, 2
SPREAD = {"quantized_matmul": 13, "matmul": 8, "cast": 10}
# Variants that no quick test tries here: tests/test_ops.py has others. A software GPU compiles a kernel for 1 s to 9 s.
LONG = {
    "attention-tiled_with_options",
    "webgpu-attention-tiled",
    "webgpu-rms_norm_q8-one_block_per_lane",
    "webgpu-gelu_multiply_q8-one_block_per_lane",
    "webgpu-top_k_top_p-one_row_per_program",
    "webgpu-gated_delta_rule_gradient-token_by_token",
    "webgpu-rwkv7_gradient-head_backward_in_memory",
    # the kernels of quantized_matmul
    "gated_product-unfused_tile",
    "gated_product-unfused_row",
}


def _is_quick(name, op, variant) -> bool:
    long = LONG & {f"{op.name}-{variant.name}", f"{name}-{op.name}-{variant.name}"}
    return not long and (name not in IN_CI or has_turn(op, name, variant))


def _variants(name) -> list:
    """The variants for a device with their ops; one where the device is absent, whose test says why."""
    there = [(name, op, v) for op in ops.all_ops() for v in op.variants if backend_named(name).name in v.backends]
    return there if name in IN_CI or backend_named(name).absent() is None else there[:1]


CASES = [case for name in NAMES for case in _variants(name)]


def _cases(mark) -> list:
    """The cases with an id and the mark that `mark` gives for each."""
    return [pytest.param(*case, id=f"{case[0]}-{case[1].name}-{case[2].name}", marks=mark(*case)) for case in CASES]


def _quick(name, op, variant) -> list:
    """A few of those samples that are for the variant; all where none is, for their reasons."""
    if name not in IN_CI:
        return in_turn(op)
    fit, target = usable(op, variant, device(name)), device(name)
    most = OF_CAST if (name, op.name) == ("webgpu", "cast") else MOST
    while chosen := covering(op, fit, most=most):
        refused = [s for s in chosen if refusal_of(variant, node_of(op, s), target) is not None]
        if not refused:
            return chosen
        fit = without(fit, refused)
    return in_turn(op)


def _share(name, op, variant) -> list:
    """A device's share of the samples."""
    if name not in IN_CI:
        return []
    fit = usable(op, variant, device(name))
    n = ROW_SAMPLES if is_row(op) else SPREAD.get(op.name, SAMPLES)
    return without(spread(fit, n, IN_CI.index(name)), _quick(name, op, variant))


@pytest.mark.parametrize(("name", "op", "variant"), _cases(lambda *case: () if _is_quick(*case) else pytest.mark.full))
def test_every_claim_is_proved_or_absent_with_a_reason(name, op, variant, record_property) -> None:
    proved, refused = _prove(name, op, variant, _quick)
    assert proved or all(r.strip() for r in refused)
    record_property("claim", [name, f"{op.name} {variant.name}", "proved" if proved else refused[0]])


@pytest.mark.parametrize(("name", "op", "variant"), _cases(lambda *case: pytest.mark.full))
def test_more_samples_of_each_claim(name, op, variant) -> None:
    _prove(name, op, variant, _share)


@pytest.mark.parametrize(("name", "op", "variant"), _cases(lambda *case: pytest.mark.soak))
def test_every_sample_on_every_device(name, op, variant) -> None:
    _prove(name, op, variant, lambda name, op, variant: in_turn(op))


def _prove(name, op, variant, tried) -> tuple[int, list[str]]:
    """How many samples were proved, and the reasons of those that were refused."""
    reason = backend_named(name).absent()
    if name in IN_CI:
        require(reason is None, f"{name}: {reason}")
    elif reason is not None:
        pytest.skip(f"{name}: {reason}")
    target, refusals, n_proved = device(name), [], 0
    for sample in tried(name, op, variant):
        node = node_of(op, sample)
        refused = variant.supports(node, target) or refusal_of(variant, node, target)
        if refused is not None:
            refusals.append(refused)
            continue
        check_bits(op, variant, target, sample)
        n_proved += 1
    return n_proved, refusals

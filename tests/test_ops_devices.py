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
from tests.support.samples import check_bits, covering, in_turn, is_row, spread, usable, without

# Devices that CI has: an absent one fails there. The others are tried where they are.
IN_CI = ("cpu:c", "webgpu")
NAMES = (*IN_CI, "cuda", "metal")
# Samples in the default run: of an op, and of a family's row, which shares its kernels' frame.
MOST, OF_ROWS = 3, 1
# ... of cast, which alone shows how each dtype is read, and of those whose kernels a software GPU compiles for up to 5 s.
OTHERS = {
    "cast": 6,
    "attention": 1,
    "quantized_matmul": 2,
    "quantized_matmul_grouped": 1,
    "matmul_grouped": 1,
    "moe_route": 2,
    "moe_softmax_topk": 2,
    "moe_weighted_reduce": 2,
    "dequantize": 2,
    "gated_product": 1,
    "gated_delta_rule": 1,
    "gated_linear_attention": 1,
    "rwkv6_time_mix": 1,
    "rwkv7_time_mix": 1,
    "ssm_conv": 1,
    "conv1d_depthwise_causal": 1,
    "selective_scan": 1,
    "triangular_inverse": 2,
    "triangular_solve": 1,
    "silu_multiply_q8": 1,
    "rms_norm_q8": 1,
    "residual_norm_q8": 1,
    "quantize_activations": 2,
    "rounded_matmul": 2,
    "matmul": 2,
    "sample": 1,
    "conv2d": 1,
    "pool2d": 1,
    "im2col": 1,
    "resample": 1,
    "pad": 2,
    "take_along_axis": 2,
    "one_hot": 2,
    "softmax_sample": 1,
    "cholesky": 1,
    "fft_rows": 1,
}
# Behind `full`: of a row, of an op, and of ops with very many; each of the devices has others. All behind `soak`.
ROW_SAMPLES, SAMPLES = 3, 8
SPREAD = {"quantized_matmul": 26, "matmul": 20, "attention": 6, "cast": 40}
# Variants that no quick test tries here: a software GPU compiles one kernel for 9 s, and tests/test_ops.py has others.
LONG = ("tiled_with_options",)
CASES = [
    pytest.param(
        name,
        op,
        variant,
        id=f"{name}-{op.name}-{variant.name}",
        marks=pytest.mark.full if variant.name in LONG else (),
    )
    for name in NAMES
    for op in ops.all_ops()
    for variant in op.variants
    if backend_named(name).name in variant.backends
]


def _quick(name, op, variant) -> list:
    """A few of those samples that are for the variant; all where none is, for their reasons."""
    if name not in IN_CI:
        return in_turn(op)
    fit, target = usable(op, variant, device(name)), device(name)
    while chosen := covering(op, fit, most=OF_ROWS if is_row(op) else OTHERS.get(op.name, MOST)):
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


@pytest.mark.parametrize(("name", "op", "variant"), CASES)
def test_every_claim_is_proved_or_absent_with_a_reason(name, op, variant, record_property) -> None:
    proved, refused = _prove(name, op, variant, _quick)
    assert proved or all(r.strip() for r in refused)
    record_property("claim", [name, f"{op.name} {variant.name}", "proved" if proved else refused[0]])


@pytest.mark.full
@pytest.mark.parametrize(("name", "op", "variant"), CASES)
def test_more_samples_of_each_claim(name, op, variant) -> None:
    _prove(name, op, variant, _share)


@pytest.mark.soak
@pytest.mark.parametrize(("name", "op", "variant"), CASES)
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

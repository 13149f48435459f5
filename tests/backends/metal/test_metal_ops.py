"""Ops on Metal: every variant's kernels, their MSL run on the stand-in headers by a fake of PyObjC's module.

By default the smallest sample of each variant of attention and matmul, with `-m full` of each variant of every op;
all with `-m soak` (40 s, most of it g++).
"""

from __future__ import annotations

from itertools import islice

import pytest

from camshaft import ops
from camshaft.backends.metal import device as metal
from camshaft.backends.registry import backend_named, device
from camshaft.ops.kernels.launch import signature
from camshaft.ops.op import HostCall
from camshaft.validation.run import refusal_of
from camshaft.validation.validate import check_sample, error_between, node_of
from tests.support.devices.fake_metal import FakeDevice, FakeMetal, forget, install
from tests.support.devices.metal_harness import compile_msl, have_compiler
from tests.support.needs import require
from tests.support.samples import is_row, samples


@pytest.fixture(autouse=True)
def _compiler():
    require(have_compiler(), "needs g++")


# Kernels that one g++ gets.
BATCH = 40


@pytest.fixture(scope="module")
def fake():
    made = FakeDevice()
    with pytest.MonkeyPatch.context() as patch:
        install(patch, FakeMetal(made))
        yield made
    forget()


CLAIMS = [(op, variant) for op in ops.all_ops() for variant in op.variants if "metal" in variant.backends]


# g++ takes 7 s to compile a quantized product.
QUICK = [(op, variant) for op, variant in CLAIMS if op.name in ("attention", "matmul")]


def cases(gpu, claims, most, of_rows):
    """(op, variant, sample): of each claim the `most` smallest samples that the GPU takes, `of_rows` of a family's row."""
    for op, variant in claims:
        by_size = sorted(samples(op.name), key=lambda s: sum(a.size for a in s.inputs))
        fit = (s for s in by_size if takes(gpu, variant, node_of(op, s)))
        yield from ((op, variant, sample) for sample in islice(fit, of_rows if is_row(op) else most))


def takes(target, variant, node):
    return variant.supports(node, target) is None and refusal_of(variant, node, target) is None


def emit_all(gpu, variant, node):
    """The variant's kernels are emitted, and wait for g++."""
    build = variant.build(node, gpu)
    for launch in () if isinstance(build, HostCall) else build.launches:
        made = signature(launch, node, build)
        gpu.compile(made.request(launch))


def prove(fake, most, of_rows, claims=CLAIMS):
    """Runs `most` samples of each claim, `of_rows` of a family's row; gives what is wrong, and what was run."""
    gpu = metal.make(0)
    found = list(cases(gpu, claims, most, of_rows))
    for op, variant, sample in found:
        emit_all(gpu, variant, node_of(op, sample))
    waiting = [library for library in fake.libraries if not library.kernels]
    for start in range(0, len(waiting), BATCH):
        batch = waiting[start : start + BATCH]
        for library, kernels in zip(batch, compile_msl([b.source for b in batch]), strict=True):
            library.kernels = kernels
    checked = [(op, variant, check_sample(op, variant, gpu, sample)) for op, variant, sample in found]
    wrong = [f"{op.name} {variant.name}: {c}" for op, variant, c in checked if not c.max_error <= c.tolerance]
    return wrong, checked


def test_each_claim_is_right(fake):
    wrong, checked = prove(fake, 1, 1, QUICK)
    assert wrong == []
    ran = {(op.name, variant.name) for op, variant, _ in checked}
    assert {(op.name, variant.name) for op, variant in QUICK} - ran == set(), "claimed, and no sample ran"


def smallest_of_each(checked):
    """The first of each claim's results."""
    first = {(op.name, variant.name): (op, variant, result) for op, variant, result in reversed(checked)}
    return list(first.values())


@pytest.mark.full
def test_each_variants_smallest_samples_are_right_and_those_beside_rows_agree_with_c(fake):
    require(backend_named("c").absent() is None, "a C compiler")
    rendered = device("cpu:c")
    wrong, checked = prove(fake, 1, 1)
    assert wrong == []
    n_compared = 0
    for op, variant, on_metal in smallest_of_each(checked):
        sample = next(s for s in samples(op.name) if s.name == on_metal.sample)
        if is_row(op) or "c" not in variant.backends or not takes(rendered, variant, node_of(op, sample)):
            continue
        in_c = check_sample(op, variant, rendered, sample)
        specs = dict(enumerate(node_of(op, sample).outputs))
        for i, pair in enumerate(zip(on_metal.outputs, in_c.outputs, strict=True)):
            numbers = specs[i].layout.numbers if i in specs else None  # of codes and scales, not their bytes
            a, b = pair if numbers is None else (numbers(packed, specs[i]) for packed in pair)
            # either may be off by the op's tolerance
            assert error_between(a, b, 4 * on_metal.tolerance) <= 4 * on_metal.tolerance, (op.name, variant.name)
        n_compared += 1
    assert n_compared > 20


@pytest.mark.soak
def test_every_sample_is_right(fake):
    wrong, checked = prove(fake, 10_000, 10_000)
    assert wrong == []
    assert len(checked) > 400

"""The table test: each op, variant and CPU backend on samples against the op's float64 reference, twice, with guard bytes."""

from __future__ import annotations

import importlib

import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.eager.tables import table
from camshaft.errors import ShapeError
from camshaft.graph.passes.decompose import use_of
from camshaft.plan.compile import compile as compile_graph
from camshaft.validation.validate import node_of
from tests.support.references import error_of
from tests.support.samples import (
    EVERYWHERE,
    STANDING,
    check_bits,
    covering,
    each_arithmetic,
    has_frame_of_others,
    has_turn,
    on_cpu,
    samples,
    smallest,
    spread,
    usable,
    without,
)

# The first samples of a variant, at most: those that show most features; of an elementwise row or a reduction, whose frame `add`
# and `sum` show, those of them that compute in different dtypes. The default run has the one of them that shows most, and all of
# them of the ops in ALL; `full` adds the others and MORE; `soak` has all. scalar has simd's kernels in one lane: the default run
# has them of a tenth of the ops.
MOST, MORE = {"scalar": 1, "simd": 2}, {"scalar": 2, "simd": 4}
MANY = 2  # variants: more than these show the op's features together, by one sample of each
# Ops of whose variant for short rows simd has three small samples: LLVM takes 4 s for a row with floats in 64 lanes.
SLOW = ("rms_norm_q8", "residual_norm_q8", "silu_multiply_q8", "gelu_multiply_q8")
# Variants whose kernels another op's has, but for the indexes of elements that they carry along: LLVM takes 1 s for each.
OF_SORT = ("partition", "buckets")
# Samples whose kernels LLVM takes 2 s for.
LONG = ("48/1 heads of 320",)
# Samples on simd of ops with a kernel per block format, as quantized_matmul has; `full` adds as many as on scalar.
OF_FORMATS = {"quantized_matmul_grouped": 3, "quantized_matmul_grouped_transposed": 2}
# ... of variants whose kernels LLVM takes 1 s for: each set of options is another.
OF_OPTIONS = {"tiled_with_options": 2}
# ... and of those with a kernel for each set of sizes; `full` adds the rest.
FEWER = {
    **OF_FORMATS,
    "quantize_activations": 3,
    "conv_transpose2d": 2,
    "im2col": 2,
    "resample": 2,
    "pad": 5,
}


ALL = (*STANDING, *EVERYWHERE, *FEWER)


def _first(op, variant, backend, there) -> list:
    most = MOST[backend]
    if backend == "simd":
        most = 1 if len(op.variants) > MANY and op.name not in EVERYWHERE else most
        most = OF_OPTIONS.get(variant.name, FEWER.get(op.name, most))
        most = 1 if variant.name.startswith("unfused_") else most  # the kernels of another op's variant
        most = 0 if op.name == "argsort" and variant.name in OF_SORT else most
    elif op.name not in STANDING:
        most *= has_turn(op, backend)
    few = backend == "simd" and op.name in SLOW and variant.name == "one_block_per_lane"
    found = covering(op, smallest(there, 3, 2200) if few else there, most=most)
    return each_arithmetic(op, found) if has_frame_of_others(op) else found


def _cases(op, variant, backend) -> list:
    there = usable(op, variant, cpu_device(backend))
    first = _first(op, variant, backend, [s for s in there if not s.name.startswith(LONG)])
    quick = first if op.name in ALL else covering(op, first, most=1)
    rest = without(there, first)
    more = without(first, quick) + spread(rest, MORE["scalar" if op.name in OF_FORMATS else backend], 0)
    name = f"{op.name}-{variant.name}-{backend}"
    return [
        pytest.param(op, variant, backend, sample, id=f"{name}-{sample.name}", marks=marks)
        for part, marks in ((quick, ()), (more, pytest.mark.full), (without(rest, more), pytest.mark.soak))
        for sample in part
    ]


CASES = on_cpu(_cases)


@pytest.mark.parametrize(("op", "variant", "backend", "sample"), CASES)
def test_variant_agrees_with_reference(op, variant, backend, sample) -> None:
    check_bits(op, variant, cpu_device(backend), sample)


@pytest.mark.parametrize("backend", ["scalar", "simd"])
def test_a_refusal_gives_its_reason(backend) -> None:
    device = cpu_device(backend)
    for op in ops.all_ops():
        for variant in (v for v in op.variants if backend in v.backends):
            for sample in samples(op.name):
                reason = variant.supports(node_of(op, sample), device)
                assert reason is None or reason.strip(), (op.name, variant.name, sample.name)


@pytest.mark.parametrize("op", [op for op in ops.all_ops() if any(op.error_samples())], ids=lambda op: op.name)
def test_wrong_specs_are_refused(op) -> None:
    for error in op.error_samples():
        with pytest.raises(ShapeError, match=error.match) as caught:
            op.infer(error.specs, error.attrs)
        assert op.name in str(caught.value), error.match


# Ops without kernels: a sample as a plan or as an eager call in turn, the rest is `full`. Their parts are tried as ops of their
# own, and tests/graph/test_decompose.py computes the samples by the parts' references.
COMPOSITES = [op for op in ops.all_ops() if ops.is_composite(op)]


def _composite_cases(eager: bool) -> list:
    cases = []
    for i, op in enumerate(COMPOSITES):
        takes = [s for s in samples(op.name) if not eager or _is_plain(op, s)]
        quick = covering(op, takes, most=1) if (i % 2 == 1) == eager else []
        for part, marks in ((quick, ()), (without(takes, quick), pytest.mark.full)):
            cases += [pytest.param(op, sample, id=f"{op.name}-{sample.name}", marks=marks) for sample in part]
    return cases


def _is_plain(op, sample) -> bool:
    return not sample.extents and all(spec.is_plain for spec in node_of(op, sample).inputs)


@pytest.mark.parametrize(("op", "sample"), _composite_cases(eager=False))
def test_a_plan_of_a_composite_agrees_with_the_reference(op, sample) -> None:
    with compile_graph(use_of(op, sample), threads=1) as plan:
        for extent, active in sample.extents.items():
            plan.set_extent(extent, active)
        assert error_of(op, sample, lambda given: plan.run(**given)) <= 1


@pytest.mark.parametrize(("op", "sample"), _composite_cases(eager=True))
def test_a_call_of_a_composite_agrees_with_the_reference(op, sample) -> None:
    attrs = {a.name: sample.attrs[a.name] for a in op.parameters.attributes if a.name in sample.attrs}
    made = getattr(table(), op.name)(*sample.inputs, **attrs)
    outputs = made if isinstance(made, tuple) else (made,)
    assert error_of(op, sample, lambda given: {f"y{i}": y for i, y in enumerate(outputs)}) <= 1


def test_every_op_can_be_computed_and_has_samples() -> None:
    for op in ops.all_ops():
        assert op.variants or op.decompose is not None, op.name
        assert list(op.samples()), op.name
        assert list(op.error_samples()), op.name


def test_families_list_their_rows() -> None:
    for module, names in ops.TABLES.items():
        assert set(importlib.import_module(f"camshaft.ops.{module}").OPS) == set(names)


def test_few_variants_are_for_one_target_alone() -> None:
    """docs/backends.md lists them."""
    every = [(op.name, v.name, v.backends - {"null"}) for op in ops.all_ops() for v in op.variants]
    alone = {(op, name) for op, name, backends in every if len(backends) == 1}
    assert alone == {
        ("matmul", "blas"),
        ("matmul", "numpy"),
        ("dot", "numpy"),
        ("quantized_matmul", "matrix_unit"),
        ("quantized_matmul", "gemv"),
        ("quantized_matmul", "multiples"),
        ("quantized_matmul_grouped", "streams"),
        *(
            (op, name)
            for op in ("quantized_matmul", "quantized_matmul_grouped", "gated_product")
            for name in ("int16_sums", "vnni_sums")
        ),
        ("matmul", "matrix_unit"),
        ("matmul", "bf16_products"),
        ("matmul", "unit_panels"),
        ("sort", "partition"),
        ("sort", "buckets"),
        ("argsort", "partition"),
        ("argsort", "buckets"),
        ("quantized_matmul", "unpacked_tiles"),
        ("quantized_matmul_transposed", "unpacked_tiles"),
        ("gated_product", "unpacked_tiles"),
        ("quantized_matmul", "unpacked_units"),
        *(("gated_product", f"unfused_{name}") for name in ("gemv", "matrix_unit", "int16_sums", "vnni_sums")),
        *(("gated_product", f"unfused_{name}") for name in ("unpacked_tiles", "unpacked_units")),
        ("attention", "unit_tiles"),
        ("attention", "unit_tiles_with_options"),
        ("attention", "unit_threads"),
        ("matmul", "bf16_dot"),
        ("rounded_matmul", "int16_gemm"),
        ("conv2d", "by_outputs"),
        ("conv2d", "bf16_parts"),
        ("argsort", "lanes"),
        ("sort", "lanes"),
        ("top_k", "lanes"),
        ("argsort", "merges"),
        ("sort", "merges"),
        ("cumsum", "whole_rows"),
        ("cummax", "whole_rows"),
        ("cummin", "whole_rows"),
    }
    assert len(alone) * 5 < len(every)
    assert {(op, name) for op, name, backends in every if backends == {"cuda", "metal", "webgpu"}} == {
        *((op, "tile") for op in ("matmul", "rounded_matmul")),
        *((f"{op}_matmul", "numbers_tile") for op in ("affine", "minifloat")),
        ("quantized_matmul_transposed", "dequantized_tile"),
        ("quantized_matmul", "sliced"),
        ("gated_product", "unfused_sliced"),
        ("attention", "split_threads"),
        ("attention_gradient", "products"),
        *((op, "row_per_program") for op in ("scatter_add", "put")),
        *(
            (op, "one_element_per_lane")
            for op in (
                *("quantize_activations", "rms_norm_q8", "residual_norm_q8"),
                *("silu_multiply_q8", "gelu_multiply_q8"),
            )
        ),
    }

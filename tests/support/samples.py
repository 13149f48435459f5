"""Which of an op's samples a test tries: all together they are many, and most of them repeat each other's dtypes and shapes.

A quick test takes samples that cover every feature (dtype, block format, rank, size against a vector's, attribute, NaN) of those
there are; what is left is marked `full`. The choice follows from the samples alone, so it is the same in every run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from math import gcd, prod

import numpy as np

from camshaft import ops
from camshaft.lang.ir import arithmetic_dtype
from camshaft.ops.op import KernelVariant, NodeSpec, Op, Sample
from camshaft.ops.quantized.samples import LazySample
from camshaft.validation.run import run_variant
from camshaft.validation.validate import SampleResult, check_sample, node_of
from tests.support import quick

# Rows that stand for their families: every shape, every dtype.
STANDING = ("add", "sum")
Feature = tuple[object, ...]


def is_row(op: Op) -> bool:
    """Whether few of the op's samples will do: rows of a family share their kernels' frame."""
    return any(op.name in rows for rows in ops.TABLES.values()) and op.name not in STANDING


_ALIKE = (*(f"elementwise.{name}" for name in ("unary", "binary", "comparison", "activation")), "reduce.reduction")


def has_frame_of_others(op: Op) -> bool:
    """Whether the op is a formula within the frame of those that stand for their families."""
    return op.name not in STANDING and any(op.name in ops.TABLES[name] for name in _ALIKE)


# Tests of kernels beside test_ops.py: the quick run has a tenth of the ops in each of them, so each op is in one.
PLACES = (
    "webgpu",
    "cpu:c",
    "simt",
    "simulated GPU",
    "interpreter",
    "explicit order",
    "ptx",
    "aarch64",
    "CUDA",
    "scalar",
)
# ... but for these, which models spend their time in: they are in each, or a third of their many variants.
EVERYWHERE = ("attention", "matmul", "quantized_matmul")


def has_turn(op: Op, place: str, variant: KernelVariant | None = None) -> bool:
    """Whether the quick run has the op, or that variant of it, in that test."""
    if op.name not in EVERYWHERE:
        return (ops.NAMES.index(op.name) + PLACES.index(place)) % len(PLACES) == 0
    return variant is None or (op.variants.index(variant) + PLACES.index(place)) % 3 == 0


@functools.cache
def samples(name: str) -> tuple[Sample, ...]:
    """An op's samples, made once a process."""
    return tuple(ops.get(name).samples())


@functools.cache
def _nodes(name: str) -> dict[int, NodeSpec]:
    """The node of each sample, by the sample's id."""
    op = ops.get(name)
    return {id(sample): node_of(op, sample) for sample in samples(name)}


@functools.cache
def _features(name: str) -> dict[int, frozenset[Feature]]:
    """Of each sample, by its id: `samples` keeps them alive."""
    op = ops.get(name)
    return {id(sample): frozenset(_found(op, sample)) for sample in samples(name)}


def _found(op: Op, sample: Sample) -> Iterator[Feature]:
    node = _nodes(op.name)[id(sample)]
    for place, specs in (("input", node.inputs), ("output", node.outputs)):
        for i, spec in enumerate(specs):
            yield place, i, spec.dtype.name, spec.layout.name, len(spec.shape)
    for i, spec in enumerate(node.inputs):
        for axis, size in enumerate(spec.shape):
            bound = size if isinstance(size, int) else size.bound
            partial = not isinstance(size, int) and sample.extents.get(size, bound) < bound
            yield i, axis, _size_class(bound), partial
    # those made on first use are contiguous and finite; packed weights compile a kernel per format
    for i, array in enumerate(() if isinstance(sample, LazySample) else sample.inputs):
        yield i, "contiguous", array.flags.c_contiguous
        yield i, "finite", array.dtype.kind != "f" or bool(np.isfinite(array.astype(np.float64)).all())
    for key, value in sample.attrs.items():
        if not callable(value):
            yield key, _size_class(value) if type(value) is int and value > 1 else repr(value)


def _size_class(n: int) -> str:
    """How a size lies to vectors of 16, the greatest that a CPU has, and to a tile."""
    if n < 16:
        return {0: "none", 1: "one"}.get(n, "part of a vector")
    return ("whole " if n % 16 == 0 else "ragged ") + ("vectors" if n < 256 else "tiles")


def each_arithmetic(op: Op, some: Sequence[Sample]) -> list[Sample]:
    """Those that compute in dtypes which none before them does."""
    found: dict[tuple[str, ...], Sample] = {}
    for sample in some:
        found.setdefault(tuple(arithmetic_dtype(spec.dtype).name for spec in node_of(op, sample).inputs), sample)
    return list(found.values())


def covering(op: Op, among: Sequence[Sample], most: int | None = None) -> list[Sample]:
    """Samples that show every feature of those given, few and with few elements; the first `most` of them."""
    shown = [set(_features(op.name)[id(s)]) for s in among]
    return [among[i] for i in quick.covering(shown, [elements(s) for s in among], most)]


def on_cpu(cases_of: Callable[[Op, KernelVariant, str], Sequence[object]]) -> list[object]:
    """The cases of every variant of every op on each of its CPU backends that LLVM compiles for."""
    return [
        case
        for op in ops.all_ops()
        for variant in op.variants
        for backend in sorted(variant.backends & {"scalar", "simd"})
        for case in cases_of(op, variant, backend)
    ]


def usable(op: Op, variant: KernelVariant, device) -> list[Sample]:
    """The samples that a variant takes on a device."""
    nodes = _nodes(op.name)
    return [s for s in samples(op.name) if variant.supports(nodes[id(s)], device) is None]


def smallest(some: Sequence[Sample], n: int, most_elements: int) -> list[Sample]:
    """The `n` with the fewest elements, up to so many elements; one, whatever it has."""
    by_size = sorted(some, key=elements)
    return by_size[:1] + [s for s in by_size[1:n] if elements(s) <= most_elements]


def elements(sample: Sample) -> int:
    """How many elements the sample's inputs have."""
    if isinstance(sample, LazySample):
        return sum(prod(spec.bounds) for spec in sample.specs or ())
    return sum(a.size for a in sample.inputs)


def without(some: Sequence[Sample], others: Sequence[Sample]) -> list[Sample]:
    """Those that are not among the others."""
    left_out = {id(s) for s in others}
    return [s for s in some if id(s) not in left_out]


def in_turn(op: Op) -> list[Sample]:
    """All samples: the first and the last before those between, so that few of them are unlike."""
    first, *rest = samples(op.name)
    return [first, *rest[-1:], *rest[:-1]]


def spread(some: list[Sample], n: int, turn: int) -> list[Sample]:
    """`n` of the samples, evenly apart, in each turn others until all had theirs.

    Samples come in short cycles (block format, activations, tokens): a step without a common divisor meets each phase, and going
    on where the last turn ended meets others.
    """
    if n >= len(some):
        return some
    step = next(s for s in range(len(some) // n + 1, 2 * len(some)) if gcd(s, len(some)) == 1)
    return [some[(turn * n + i + 1) * step % len(some)] for i in range(n)]


def check_bits(op: Op, variant: KernelVariant, device, sample: Sample, again=None) -> SampleResult:
    """Asserts that a sample is within its tolerance, and that one more run (on `again`, if given) has the same bits."""
    checked = check_sample(op, variant, device, sample)
    assert checked.max_error <= checked.tolerance, (
        f"{checked.sample}: error {checked.max_error} above {checked.tolerance}"
    )
    outputs = run_variant(variant, node_of(op, sample), again or device, sample.inputs, sample.extents)
    for a, b in zip(checked.outputs, outputs, strict=True):
        np.testing.assert_array_equal(
            *(x.reshape(-1).view(np.uint8) for x in (a, b)), err_msg=f"{sample.name}, run again"
        )
    return checked

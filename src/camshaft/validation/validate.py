"""Validate one variant on one sample: run it with guard bytes and compare with the float64 reference per element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from camshaft.backends.device import HOST, Device
from camshaft.dtypes import as_dtype, bf16
from camshaft.errors import BackendError
from camshaft.extent import Extent
from camshaft.ops.op import KernelVariant, NodeSpec, Op, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import GUARD_BYTE, UNALIGNED_NAN, has_run_time_form, run_variant

Array = np.ndarray[Any, Any]
# One element may exceed the root of the allowed mean squared error by this factor, or in proportion to its magnitude: in models
# some are hundreds of times the rest.
WORST_ELEMENT = 64.0


@dataclass(frozen=True)
class SampleResult:
    """The result of one sample: `max_error` is the normalized mean squared error, or the worst element's if greater."""

    sample: str
    max_error: float
    tolerance: float
    outputs: tuple[Array, ...]


def specs_of(sample: Sample) -> tuple[TensorSpec, ...]:
    """The sample's specs, else those of its plain arrays."""
    return sample.specs or tuple(TensorSpec(a.shape, as_dtype(a.dtype)) for a in sample.inputs)


def node_of(op: Op, sample: Sample) -> NodeSpec:
    """The node of a sample: its input specs, and the outputs that `infer` gives."""
    specs = specs_of(sample)
    return NodeSpec(specs, op.infer(specs, sample.attrs), sample.attrs)


def check_sample(op: Op, variant: KernelVariant, device: Device, sample: Sample) -> SampleResult:
    """Run the sample and compare; on HOST memory run it again on NaN-filled, unaligned memory, with run-time sizes too.

    Raises BackendError for a write outside an output or past an active extent, and where run-time sizes change a bit.
    """
    node = node_of(op, sample)
    outputs = run_variant(variant, node, device, sample.inputs, sample.extents)
    wanted = _wanted(op, node, sample)
    first = _compared(op, variant, node, sample, outputs, wanted, GUARD_BYTE)
    if device.space != HOST or not first.max_error <= first.tolerance:
        return first
    # A device that states an alignment never passes unaligned arrays to kernels.
    memory_fill = UNALIGNED_NAN if device.limits.get("alignment", 1) == 1 else replace(UNALIGNED_NAN, shifted=False)
    again = run_variant(variant, node, device, sample.inputs, sample.extents, memory_fill)
    if has_run_time_form(variant, node, device):
        other = run_variant(variant, node, device, sample.inputs, sample.extents, memory_fill, run_time_sizes=True)
        if not all(_same_bits(a, b) for a, b in zip(again, other, strict=True)):
            raise BackendError(f"{op.name} {variant.name} ({sample.name}) gives other bits with run-time sizes")
    second = _compared(op, variant, node, sample, again, wanted, memory_fill.fill)
    if second.max_error <= second.tolerance:
        return first
    return replace(second, sample=f"{sample.name}, run again on NaN-filled, unaligned memory")


def _same_bits(a: Array, b: Array) -> bool:
    """Whether two outputs are the same bytes, but for those of NaNs."""
    if a.tobytes() == b.tobytes():
        return True
    if not as_dtype(a.dtype).is_float:
        return False
    return np.where(np.isnan(a), 0, a).tobytes() == np.where(np.isnan(b), 0, b).tobytes()


def check_outputs(
    op: Op, variant: KernelVariant, node: NodeSpec, sample: Sample, outputs: tuple[Array, ...]
) -> SampleResult:
    """Compare the outputs of a run made elsewhere. Raises BackendError as `check_sample` does."""
    return _compared(op, variant, node, sample, outputs, _wanted(op, node, sample), GUARD_BYTE)


def _wanted(op: Op, node: NodeSpec, sample: Sample) -> Sequence[Array]:
    pairs = zip(sample.inputs, node.inputs, strict=True)
    return op.reference(tuple(_active(a, s, sample.extents) for a, s in pairs), sample.attrs)


def _compared(
    op: Op,
    variant: KernelVariant,
    node: NodeSpec,
    sample: Sample,
    outputs: tuple[Array, ...],
    wanted: Sequence[Array],
    fill: int,
) -> SampleResult:
    specs = node.outputs + tuple(node.inputs[i] for i in op.updates)
    if len(wanted) != len(outputs):
        raise BackendError(f"{op.name}: the reference gives {len(wanted)} arrays, {variant.name} gives {len(outputs)}")
    errors = [0.0]
    tolerance = 0.0
    for index, (got, spec, want) in enumerate(zip(outputs, specs, wanted, strict=True)):
        if index < len(node.outputs):
            check_untouched(got, spec, sample.extents, f"{op.name} {variant.name} ({sample.name})", fill)
        allowed = tolerance_of(op, spec, want, variant)
        tolerance = max(tolerance, allowed)
        pairs = zip(_arrays(got, spec, sample.extents, want), _arrays(want, spec, {}, want), strict=True)
        errors += [error_between(a, b, allowed) for a, b in pairs]
    return SampleResult(sample.name, max(errors), tolerance, outputs)


def by_numbers(spec: TensorSpec, want: Array) -> bool:
    """Whether the reference gave numbers for a packed output, rather than its bytes."""
    return not spec.is_plain and spec.layout.numbers is not None and want.dtype.kind == "f"


def tolerance_of(op: Op, spec: TensorSpec, want: Array, variant: KernelVariant | None = None) -> float:
    """The tolerance of an output: by dtype, or by layout if a packed output is compared as numbers; the variant's if it has
    one of its own."""
    name = spec.layout.name if by_numbers(spec, want) else spec.dtype.name
    own = {} if variant is None else variant.tolerance
    return own.get(name, op.tolerance.get(name, 0.0))


def _active(array: Array, spec: TensorSpec, extents: Mapping[Extent, int]) -> Array:
    """The part of a plain tensor inside the active extents; other layouts whole."""
    return active_part(array, spec, extents) if spec.is_plain else array


def active_part(array: Array, spec: TensorSpec, extents: Mapping[Extent, int]) -> Array:
    """The elements of a plain tensor inside the active extents, at their bounds where none is given."""
    return array[tuple(slice(extents.get(d, d.bound)) if isinstance(d, Extent) else slice(None) for d in spec.shape)]


def _arrays(array: Array, spec: TensorSpec, extents: Mapping[Extent, int], want: Array) -> list[Array]:
    """The arrays to compare: the active part of a plain tensor, the numbers of a packed one, else the typed parts of its
    layout without padding."""
    if by_numbers(spec, want):
        assert spec.layout.numbers is not None
        return [active_part(array if array is want else spec.layout.numbers(array, spec), spec, extents)]
    if spec.is_plain:
        return [_active(array, spec, extents)]
    return [array[p.offset_nbytes : p.offset_nbytes + p.nbytes].view(p.dtype.numpy) for p in spec.parts]


def check_untouched(got: Array, spec: TensorSpec, extents: Mapping[Extent, int], what: str, fill: int) -> None:
    """Raise BackendError if an output, filled with `fill` before the run, was written past an active extent."""
    if not spec.is_plain or not extents:
        return
    outside = np.ones(got.shape, bool)
    outside[tuple(slice(extents.get(d, d.bound)) if isinstance(d, Extent) else slice(None) for d in spec.shape)] = False
    if (np.ascontiguousarray(got[outside]).view(np.uint8) != fill).any():
        raise BackendError(f"{what} wrote past the active extent")


def _equal(a: Array, b: Array) -> bool:
    if a.dtype == bf16.numpy:  # NumPy knows no NaN of it
        a, b = a.astype(np.float32), b.astype(np.float32)
    return np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def error_between(got: Array, want: Array, tolerance: float) -> float:
    """The normalized mean squared error, or the worst element's divided by WORST_ELEMENT^2 or normalized by itself, if that is
    greater. Inf if shapes, NaN or infinities differ, or any element does where integers or a tolerance of 0 demand equality."""
    if got.shape != want.shape:
        return float("inf")
    if got.dtype.kind == "c":
        got, want = (
            np.ascontiguousarray(a.astype(got.dtype if tolerance == 0 else np.complex128)) for a in (got, want)
        )
        got, want = got.view(got.real.dtype), want.view(want.real.dtype)
    if got.dtype.kind in "iub" or tolerance == 0:
        return 0.0 if _equal(got, want.astype(got.dtype)) else float("inf")
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    if not finite.any():
        return 0.0
    a, b = a[finite], b[finite]
    # Scale by a power of two (no rounding): squares of f64 beyond 1e154 would overflow.
    unit = 2.0 ** np.clip(np.frexp(np.abs(b).max())[1], -1000, 1000)
    with np.errstate(over="ignore"):
        squares = (a / unit - b / unit) ** 2
    own = (b / unit) ** 2
    scale = float(own.mean()) or 1e-30
    return max(float(squares.mean()) / scale, float((squares / np.maximum(own, scale * WORST_ELEMENT**2)).max()))

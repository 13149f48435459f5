"""rms_norm, residual_norm, silu_multiply and gelu_multiply with their result quantized in the same pass, for quantized products.

Results are bit-equal to the op followed by quantize_activations. `sums` names the forms of y as (group, zero) pairs,
more than one if several kinds of products read y. Results: the forms in that order, y itself with `floats` (if another
op reads it), and the sum of a residual_norm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from camshaft.dtypes import bf16, f32
from camshaft.ops import op as ops
from camshaft.ops.checks import partly_active
from camshaft.ops.elementwise import activation, silu_multiply
from camshaft.ops.norm import residual_norm, rms_norm
from camshaft.ops.parameters import FLOATS, SUMS, TO, Parameters
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantize.fused_kernels import ACTIVATIONS, build, cost_of
from camshaft.ops.quantize.q8_blocks import (
    BLOCK,
    BLOCKS,
    ELEMENTS,
    TILES,
    VECTORS,
    Sums,
)
from camshaft.ops.rule import Builder, Match, Rule, Stage, Use, Uses
from camshaft.ops.spec import TensorSpec

_SHAPES: tuple[tuple[int, int, dict[str, Any]], ...] = (
    (1, 32, {"sums": ((32, 0),)}),
    (3, 96, {"sums": ((16, 32),)}),
    (2, 544, {"sums": ((32, 8), (16, 0)), "floats": True}),
    (5, 1056, {"sums": ((32, 128),), "floats": True}),
    (35, 96, {"sums": (TILES, (32, 0))}),
)


def _case(first: ops.Op, rows: int, k: int) -> tuple[tuple[ops.Array, ...], dict[str, Any]]:
    """Returns inputs and attributes of `first` for y of [rows, k]; the first block of the first row is zero."""
    rng = np.random.default_rng(rows + k)
    x = [rng.normal(size=(rows, k)).astype(np.float32) for _ in range(1 if first.name == "rms_norm" else 2)]
    for array in x:
        array[0, :32] = 0
    if _activation(first.name):
        return tuple(x), {}
    return (*x, rng.normal(size=k).astype(np.float32)), {"eps": 1e-5} | ({"offset": 1.0} if k == 544 else {})


def _activation(name: str) -> str:
    """The activation of `silu_multiply` and `silu_multiply_q8`; "" for ops without one."""
    act = name.partition("_multiply")[0]
    return act if act in ACTIVATIONS else ""


def samples(first: ops.Op) -> Iterable[ops.Sample]:
    """Yields samples of `first` followed by quantize_activations."""
    for rows, k, attrs in _SHAPES:
        inputs, own = _case(first, rows, k)
        yield ops.Sample(f"{rows}x{k} {attrs}", inputs, own | attrs)
    inputs, own = _case(first, 16, 64)
    full = ops.Sample("7 of 16", inputs, own | {"sums": ((32, 0), (16, 32)), "floats": True})
    yield partly_active(full, 7, fixed=[i for i, a in enumerate(inputs) if a.ndim == 1])


def error_samples(first: ops.Op) -> Iterable[ops.ErrorSample]:
    """Yields a row that is not a multiple of a block, and unknown or repeated sums."""
    rows: tuple[tuple[int, Sums, str], ...] = (
        (33, ((32, 0),), "multiple of 32"),
        (64, ((8, 0),), "sums such"),
        (64, ((32, 0), (32, 0)), "each once"),
    )
    for k, sums, match in rows:
        inputs, own = _case(first, 2, 64)
        specs = tuple(TensorSpec((2, k) if a.ndim == 2 else (k,), f32) for a in inputs)
        yield ops.ErrorSample(specs, own | {"sums": sums}, match)


# A value between two codes may get either, because y itself is rounded: one step of 127, for a few elements.
TOLERANCE = 3e-5


def forms_of(name: str, y: TensorSpec, attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    """Returns the specs of the forms of y that `sums` names. ShapeError, as from op `name`, for an unknown form."""
    kinds: Any = attrs.get("sums")
    fits = isinstance(kinds, tuple) and 0 < len(set(kinds)) == len(kinds) and set(kinds) <= set(q8.FORMS)
    ops.expect(fits, name, f"sums {kinds!r}", "sums such as ((32, 0),) or ((32, 8), (16, 32)), each once")
    fits = len(y.shape) == 2 or (len(y.shape) > 2 and bool(_activation(name)))
    ops.expect(fits and y.bounds[-1] % BLOCK == 0, name, y, "rows [T, k], k a multiple of 32")
    return tuple(TensorSpec(y.shape, f32, q8.FORMS[kind]) for kind in kinds)


def _without_quantization(attrs: ops.Attrs) -> dict[str, Any]:
    """Returns the attributes of the first op."""
    return {name: value for name, value in attrs.items() if name not in ("sums", "floats")}


def _infer_after(op: ops.Op, name: str) -> Any:
    def infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
        y, *rest = op.infer(specs, _without_quantization(attrs))
        ops.expect(y.dtype == f32, name, y, "f32")
        tensors = [spec.shape for spec in specs if len(spec.shape) > 1]
        ops.expect(all(shape == y.shape for shape in tensors), name, specs, "tensors of one shape")
        return (*forms_of(name, y, attrs), *((y,) if attrs.get("floats") else ()), *rest)

    return infer


def _reference_after(op: ops.Op) -> Any:
    def reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
        y, *rest = op.reference(inputs, _without_quantization(attrs))
        codes, scales = q8.quantize(y)
        numbers = codes.astype(np.float64) * np.repeat(scales.astype(np.float64), BLOCK, axis=-1)
        tiles = y.astype(np.float32).astype(bf16.numpy).astype(np.float64)
        forms = (tiles if kind == TILES else numbers for kind in attrs["sums"])
        return (*forms, *((y,) if attrs.get("floats") else ()), *rest)

    return reference


def _decompose_after(op: ops.Op) -> Any:
    def decompose(f: Any, *tensors: Any, sums: Sums, floats: bool = False, **attrs: Any) -> Any:
        made = getattr(f, op.name)(*tensors, **attrs)
        y, *rest = made if isinstance(made, tuple) else (made,)
        forms = (f.quantize_activations(y, group=group, zero=zero) for group, zero in sums)
        return (*forms, *((y,) if floats else ()), *rest)

    return decompose


def _own_quantizer(name: str) -> Callable[[Use, Uses], Match | None]:
    """Matches an op and the quantize_activations that read its first result on one device. The op `name` replaces them; it
    returns the result itself only if anything else reads it."""

    def find(use: Use, uses: Uses) -> Match | None:
        y = use.outputs[0]
        readers = uses.readers(y)
        quantizers = tuple(n for n in readers if n.op is q8.OP and n.inputs[0] is y and n.device == use.device)
        kinds = list(dict.fromkeys(q8.kind_of(n.attrs) for n in quantizers))
        floats = uses.is_output(y) or len(quantizers) < len(readers)
        attrs = {**use.attrs, "sums": tuple(kinds), "floats": floats}
        if not quantizers or not OPS[name].accepts(tuple(t.spec for t in use.inputs), attrs):
            return None

        def build(new: Builder) -> Mapping[Any, Any]:
            made = new.apply(OPS[name], use.inputs, attrs, use.name)
            rest = made[len(kinds) :]
            results = {n.outputs[0]: made[kinds.index(q8.kind_of(n.attrs))] for n in quantizers}
            return results | dict(zip(use.outputs if floats else use.outputs[1:], rest, strict=True))

        return Match(build, quantizers)

    return find


def _parameters(of_first: Parameters) -> Parameters:
    others = tuple(a for a in of_first.attributes if a != TO)
    return Parameters(of_first.tensors, (*others, SUMS, FLOATS), results=None)


def _variant(name: str, mapping: str, backends: frozenset[str], act: str) -> ops.KernelVariant:
    return ops.KernelVariant(name, backends, partial(build, act, mapping), partial(q8.takes, mapping), cost_of(mapping))


def _op(first: ops.Op) -> ops.Op:
    """Returns the op that is `first`, then quantize_activations."""
    name, act = f"{first.name}_q8", _activation(first.name)
    return ops.Op(
        name=name,
        formula=f"q8 of {first.formula}",
        parameters=_parameters(first.parameters),
        infer=_infer_after(first, name),
        reference=_reference_after(first),
        variants=(
            _variant("vectors", VECTORS, ops.VECTORS, act),
            _variant("one_block_per_lane", BLOCKS, ops.EVERYWHERE, act),
            _variant("one_element_per_lane", ELEMENTS, ops.GPUS, act),
        ),
        samples=lambda: samples(first),
        error_samples=lambda: error_samples(first),
        tolerance={"f32": 1e-12, **{layout.name: TOLERANCE for layout in q8.FORMS.values()}},
        flops=first.flops,
        decompose=_decompose_after(first),
        vjp=ops.NoGradient("it rounds to 8 bits"),
        rules=(Rule(Stage.QUANTIZED_RESULT, (first.name,), _own_quantizer(name)),),
    )


_FIRST = (rms_norm.OP, residual_norm.OP, silu_multiply.OP, activation.OPS["gelu_multiply"])
OPS = {op.name: op for op in map(_op, _FIRST)}

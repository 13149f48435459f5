"""quantize_activations: x [T, .., k] to s8 codes with a scale per block of 32: d = max|x| / 127, q = round(x / d); and sums of q.
Or to bf16 in tiles of 32 rows by 32 columns, the operands of AMX.

All quantized_matmuls that need the same sums share one quantized tensor. There is a sum of q for each group of `group` codes,
which weights with a zero point z or minima m need: sum (code - z) s q d = s d (sum(code q) - z sum(q)), and
sum (code s + m) q d = s d sum(code q) + m d sum(q). Sums are stored in the form that kernels add: -z sum(q) in i32, or d sum(q)
in f32 where z is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from math import prod

import numpy as np

from camshaft.dtypes import DType, bf16, f32, i8, i32, u32
from camshaft.extent import Extent
from camshaft.lang import Array, Constant, Tracer, kernel
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import without_threads
from camshaft.ops.parameters import Attribute, Parameters
from camshaft.ops.quantize.q8_blocks import (
    BLOCK,
    BLOCKS,
    ELEMENTS,
    INVERSE_127,
    TILE_ROWS,
    TILES,
    VECTORS,
    loader,
    outs_of,
    span_of,
    store_blocks,
)
from camshaft.ops.spec import Layout, TensorSpec


@kernel
def quantize_blocks(
    k: Tracer, x: Array, *arrays: Array, blocks: int, kind: tuple[int, int], span: int, mapping: str
) -> None:
    # d = max|x| / 127, q = round(x / d) of each block of 32; `span` blocks per program, or a row if span is 0
    row, load = k.program(0), loader(k, mapping)
    there = span_of(k, blocks, span) if span else (blocks,)
    store_blocks(k, lambda c: load(x, row, c), row, there, outs_of(arrays, (kind,))[0], mapping)


def quantize(x: ops.Array) -> tuple[ops.Array, ops.Array]:
    """Returns codes (int8 [T, k]) and scales (float32 [T, k / 32]) as the kernels make them."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, BLOCK)
    greatest = np.abs(blocks).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), greatest, out=np.zeros_like(greatest), where=greatest > 0)
    # in f64 the product is exact, so it is rounded once, as by fma
    codes = np.rint(blocks.astype(np.float64) * inverse).astype(np.int8)
    return codes.reshape(x.shape), (greatest * np.float32(INVERSE_127))[..., 0]


def _sums(codes: ops.Array, scales: ops.Array, group: int, zero: int) -> ops.Array:
    """Returns the sums of groups of codes in the form that is stored."""
    total = codes.astype(np.int32).reshape(*codes.shape[:-1], -1, group).sum(-1, dtype=np.int32)
    by_scale: ops.Array = total.astype(np.float32) * scales.repeat(BLOCK // group, axis=-1)
    return total * np.int32(-zero) if zero else by_scale


def to_bytes(codes: ops.Array, scales: ops.Array, spec: TensorSpec, group: int, zero: int) -> ops.Array:
    """Returns the bytes of the packed tensor."""
    out, scales = np.zeros(spec.nbytes, np.uint8), scales.astype(np.float32)
    sums = _sums(codes, scales, group, zero)
    for part, values in zip(spec.parts, (codes, scales, sums), strict=True):
        raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        out[part.offset_nbytes : part.offset_nbytes + raw.size] = raw
    return out


def from_bytes(data: ops.Array, spec: TensorSpec) -> ops.Array:
    """Returns the float64 values [T, .., k] of the packed bytes, NaN in groups whose sum does not match their codes."""
    rows, k = flat(spec)
    raw = {p.name: data[p.offset_nbytes : p.offset_nbytes + p.nbytes].view(p.dtype.numpy) for p in spec.parts}
    codes, scales = raw["codes"].view(np.int8).reshape(rows, k), raw["scales"].reshape(rows, k // BLOCK)
    group, zero = next(kind for kind, layout in LAYOUTS.items() if layout is spec.layout)
    right = _sums(codes, scales, group, zero) == raw["sums"].reshape(rows, k // group)
    values = codes * scales.astype(np.float64).repeat(BLOCK, axis=-1)
    return np.where(right.repeat(group, axis=-1), values, np.nan).reshape(spec.bounds)


def flat(x: TensorSpec) -> tuple[int, int]:
    """Returns the rows and columns of x with the axes after the first joined, as kernels see it: no block crosses a row."""
    return x.bounds[0], prod(x.bounds[1:])


def _parts(group: int, zero: int) -> Layout:
    def parts(spec: TensorSpec) -> tuple[tuple[str, DType, tuple[int, ...]], ...]:
        rows, k = flat(spec)
        sums = ("sums", i32 if zero else f32, (rows, k // group))
        return (("codes", u32, (rows, k // 4)), ("scales", f32, (rows, k // BLOCK)), sums)

    return Layout(f"q8 sums of {group}" + (f" by -{zero}" if zero else ""), parts, from_bytes)


# Keys are (group, zero point of the weights); weights with minima have zero point 0.
LAYOUTS = {(group, zero): _parts(group, zero) for group in (16, 32) for zero in (0, 1, 4, 8, 12, 16, 32, 64, 128)}


def _tile_parts(spec: TensorSpec) -> tuple[tuple[str, DType, tuple[int, ...]], ...]:
    rows, k = flat(spec)
    return (("tiles", bf16, (-(-rows // TILE_ROWS), k // BLOCK, TILE_ROWS, BLOCK)),)


def _from_tiles(data: ops.Array, spec: TensorSpec) -> ops.Array:
    (part,), (rows, k) = spec.parts, flat(spec)
    tiles = data[: part.nbytes].view(bf16.numpy).reshape(part.shape).swapaxes(1, 2)
    with np.errstate(invalid="ignore"):  # rows past the active ones are undefined, perhaps signalling NaN
        found: ops.Array = tiles.reshape(-1, k)[:rows].astype(np.float64).reshape(spec.bounds)
    return found


def to_tiles(x: ops.Array, spec: TensorSpec) -> ops.Array:
    """Returns the bytes of x [T, k] as bf16 in tiles; rows past the last are 0."""
    (part,), (rows, k) = spec.parts, x.shape
    padded = np.zeros((part.shape[0] * TILE_ROWS, k), bf16.numpy)
    padded[:rows] = x.astype(bf16.numpy)
    tiles = padded.reshape(part.shape[0], TILE_ROWS, k // BLOCK, BLOCK).swapaxes(1, 2)
    out = np.zeros(spec.nbytes, np.uint8)
    out[: part.nbytes] = np.ascontiguousarray(tiles).view(np.uint8).reshape(-1)
    return out


TILE_LAYOUT = Layout("bf16 in tiles", _tile_parts, _from_tiles)
# Every form of activations: 8-bit codes with each kind of sums, and bf16.
FORMS = {**LAYOUTS, TILES: TILE_LAYOUT}


def is_tiled(x: TensorSpec) -> bool:
    """Returns whether activations are bf16 in tiles."""
    return x.layout is TILE_LAYOUT


def kind_of(attrs: ops.Attrs) -> tuple[int, int]:
    """Returns the group and zero point of the attributes: a key of FORMS."""
    return attrs.get("group", 32), attrs.get("zero", 0)


def _infer(specs: tuple[TensorSpec, ...], attrs: ops.Attrs) -> tuple[TensorSpec, ...]:
    ops.expect(len(specs) == 1, "quantize_activations", specs, "x [T, .., k]")
    x, kind = specs[0], kind_of(attrs)
    good = x.is_plain and x.dtype == f32 and len(x.shape) >= 2 and x.bounds[-1] % BLOCK == 0
    good = good and not any(isinstance(d, Extent) for d in x.shape[1:])
    ops.expect(good, "quantize_activations", x, "x of f32 [T, .., k], k a multiple of 32, and an Extent only as T")
    wanted = "group 16 or 32, zero 0 or a format's zero point, or group 0, zero 0"
    ops.expect(kind in FORMS, "quantize_activations", f"group {kind[0]}, zero {kind[1]}", wanted)
    return (TensorSpec(x.shape, f32, FORMS[kind]),)


def _reference(inputs: Sequence[ops.Array], attrs: ops.Attrs) -> tuple[ops.Array, ...]:
    x, kind = inputs[0], kind_of(attrs)
    if kind == TILES:
        return (x.astype(np.float32).astype(bf16.numpy).astype(np.float64),)
    return (to_bytes(*quantize(x), TensorSpec(x.shape, f32, LAYOUTS[kind]), *kind),)


SPAN = 16


def form_operands(index: int, x: TensorSpec, kind: tuple[int, int]) -> tuple[ops.Operand, ...]:
    """Returns the operands of output `index`, a form of x: its tiles, or codes, scales and sums."""
    if kind == TILES:
        return (ops.write(index, "tiles"),)
    return ops.write(index, "codes", flat(x), i8), ops.write(index, "scales"), ops.write(index, "sums")


def _variant(name: str, mapping: str, backends: frozenset[str], ns_per_element: float) -> ops.KernelVariant:
    """Returns the variant with one mapping of blocks to lanes."""

    def build(node: ops.NodeSpec, target: ops.Target) -> ops.Build:
        x, span = node.inputs[0], span_for(mapping, target)
        blocks = flat(x)[1] // BLOCK
        grid = (ops.Cells(x.shape[0]), *([ops.Cells(blocks, span)] if span else []))
        kind = kind_of(node.attrs)
        constants: dict[str, Constant] = {"blocks": blocks, "kind": kind, "span": span, "mapping": mapping}
        arrays = ops.read(0, shape=flat(x)), *form_operands(0, x, kind)
        return ops.Build((ops.Launch(quantize_blocks, arrays, grid, constants),))

    def cost(node: ops.NodeSpec, target: ops.Target) -> float:
        return ns_per_element * prod(node.inputs[0].bounds)

    return ops.KernelVariant(name, backends, build, partial(takes, mapping), cost)


def span_for(mapping: str, target: ops.Target) -> int:
    """Returns the blocks per program: one per 32 threads, SPAN with vectors, or 0 (a whole row) with a block per lane."""
    return {ELEMENTS: max(1, target.lanes // BLOCK), VECTORS: SPAN, BLOCKS: 0}[mapping]


def takes(mapping: str, node: ops.NodeSpec, target: ops.Target) -> str | None:
    """Returns why a target does not support a mapping of blocks to lanes, or None."""
    return without_threads(target, BLOCK) if mapping == ELEMENTS else None


def _samples() -> Iterable[ops.Sample]:
    rng = np.random.default_rng(3)
    for rows, k, group, zero in ((1, 32, 32, 0), (3, 96, 16, 0), (2, 544, 32, 8), (5, 1056, 32, 128), (2, 96, 16, 32)):
        x = rng.normal(size=(rows, k)).astype(np.float32)
        x[0, :32] = 0
        yield ops.Sample(f"{rows}x{k}/{group}-{zero}", (x,), {"group": group, "zero": zero})
    x = rng.normal(size=(3, 2, 96)).astype(np.float32)
    yield ops.Sample("3x2x96/32-8", (x,), {"group": 32, "zero": 8})
    for rows, k in ((1, 32), (33, 544)):
        yield ops.Sample(f"{rows}x{k}/tiles", (rng.normal(size=(rows, k)).astype(np.float32),), {"group": 0})


def _error_samples() -> Iterable[ops.ErrorSample]:
    yield ops.ErrorSample((TensorSpec((2, 33), f32),), {}, "multiple of 32")
    yield ops.ErrorSample((TensorSpec((Extent("T", 2), 64), f32),), {"group": 8}, "group 16 or 32")
    yield ops.ErrorSample((TensorSpec((2, 64), f32),), {"zero": 5}, "zero 0 or a format's")


OP = ops.Op(
    name="quantize_activations",
    vjp=ops.NoGradient("it rounds to 8 bits"),
    formula="d = max|x| / 127 over 32 k; q = round(x / d)",
    parameters=Parameters("x", (Attribute("group", "int", 32), Attribute("zero", "int", 0))),
    infer=_infer,
    reference=_reference,
    variants=(
        _variant("blocks_in_registers", VECTORS, ops.VECTORS, 0.3),  # 0.30 ns per element at k = 576 on Zen 4
        _variant("one_block_per_lane", BLOCKS, ops.EVERYWHERE, 4.0),
        # one row on an H200: 9.5 us by vectors, whose workgroups have 16 threads
        _variant("one_element_per_lane", ELEMENTS, ops.GPUS, 0.03),
    ),
    samples=_samples,
    error_samples=_error_samples,
    tolerance={"f32": 0.0},
)

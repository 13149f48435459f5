"""Samples of quantized_matmul and gated_product: random blocks of every packed format, with sizes around those of tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from camshaft.dtypes import f32
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops import op as ops
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantize.q8_blocks import TILES, Sums
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.packed.packing import interleaved, pack, packed_format
from camshaft.ops.spec import TensorSpec


class LazySample(ops.Sample):
    """A Sample that makes its inputs on first use, because packing a format's weights compiles a kernel. A value of `attrs` that
    depends on the inputs is a function."""

    def __init__(
        self,
        name: str,
        make: Callable[[], tuple[ops.Array, ...]],
        attrs: ops.Attrs,
        specs: tuple[TensorSpec, ...],
        extents: Mapping[Extent, int] | None = None,
    ) -> None:
        vars(self).update(name=name, attrs=attrs, specs=specs, extents=extents or {}, _make=make)

    @cached_property
    def inputs(self) -> tuple[ops.Array, ...]:
        """The result of `make`, called once."""
        made: tuple[ops.Array, ...] = vars(self)["_make"]()
        return made


def random_blocks(name: str, n: int, k: int, seed: int) -> ops.Array:
    """Random blocks of a format, uint8, with finite scales."""
    rng, block = np.random.default_rng(seed), BLOCK_FORMATS[name]
    assert block.layout is not None
    raw = rng.integers(0, 256, (n * k // block.block_size, block.block_nbytes)).astype(np.uint8)
    records = raw.reshape(-1).view(block.layout)
    names = block.layout.names or ()
    for field in (name for name in ("d", "dmin", "m") if name in names and block.layout[name] == np.dtype("<f2")):
        records[field] = rng.normal(size=len(records)) * 0.1
    if "dmin" in names:
        records["d"][::5] = 0  # minima only
    if name == "MXFP4":
        records["e"] = rng.integers(118, 124, len(records))
    if name == "NVFP4":
        records["d"] = rng.integers(0, 64, records["d"].shape)
    if name == "IQ1_M":  # d is the top nibbles of the scales
        records["scales"][:, 3] = records["scales"][:, 3] & 0x0FFF | 0x2000
    return raw.reshape(-1)


def packed_bytes(raw: ops.Array, spec: TensorSpec) -> ops.Array:
    """The packed bytes of a file's blocks; `spec` is that of the packed weights."""
    out = np.zeros(spec.nbytes, np.uint8)
    pack(raw, spec, out)
    return out


@dataclass(frozen=True)
class Case:
    """x [rows (active), k] times random weights [n, k] of the block format `name`. Everything is made on first use. `form`: f32,
    q8 or tiles (of bf16)."""

    name: str
    rows: int
    active: int
    n: int
    k: int
    form: str
    seed: int | None = None

    @property
    def label(self) -> str:
        """The sample's name."""
        return f"{self.name} {self.rows}({self.active})x{self.k}x{self.n} {self.form}"

    @property
    def plain(self) -> TensorSpec:
        """The weights as a file has them."""
        return TensorSpec((self.n, self.k), BLOCK_FORMATS[self.name])

    @cached_property
    def specs(self) -> tuple[TensorSpec, TensorSpec]:
        """The specs of x and of the packed weights."""
        dim: int | Extent = Extent("T", self.rows) if self.active < self.rows else self.rows
        kinds = {"q8": packed_format(self.plain).sums, "tiles": TILES}
        layout = (q8.FORMS[kinds[self.form]],) if self.form in kinds else ()
        return TensorSpec((dim, self.k), f32, *layout), interleaved(self.plain)

    @property
    def extents(self) -> dict[Extent, int]:
        """The active value of x's rows, if they are an Extent."""
        dim = self.specs[0].shape[0]
        return {dim: self.active} if isinstance(dim, Extent) else {}

    @cached_property
    def raw(self) -> ops.Array:
        """The file's bytes."""
        return random_blocks(self.name, self.n, self.k, seed=self.n if self.seed is None else self.seed)

    @cached_property
    def x(self) -> ops.Array:
        """f32, or the bytes of its form."""
        x = np.random.default_rng(self.n + self.k).normal(size=(self.rows, self.k)).astype(np.float32)
        if self.form == "tiles":
            return q8.to_tiles(x, self.specs[0])
        kind = packed_format(self.plain).sums
        return q8.to_bytes(*q8.quantize(x), self.specs[0], *kind) if self.form == "q8" else x

    def packed(self) -> ops.Array:
        """The weights' packed bytes."""
        return packed_bytes(self.raw, self.specs[1])

    def wanted(self) -> ops.Array:
        """The float64 product of the active rows with the file's own dequantized weights."""
        block = BLOCK_FORMATS[self.name]
        weights = block.dequantize(self.raw.reshape(-1, block.block_nbytes)).reshape(self.n, self.k)
        numbers = self.specs[0].layout.numbers
        values = self.x.astype(np.float64) if numbers is None else numbers(self.x, self.specs[0])
        product: ops.Array = values[: self.active] @ weights.astype(np.float64).T
        return product


def sample(case: Case) -> ops.Sample:
    """The case as a sample, with the expected product as a function in its attributes."""
    attrs = {"wanted": case.wanted}
    return LazySample(case.label, lambda: (case.x, case.packed()), attrs, case.specs, case.extents)


def samples() -> Iterable[ops.Sample]:
    """For each format and kind of x: one token, one with rows for several streams, several tokens, and a partial tile of them. Of
    a plain, a nested, two formats of odd scales and one of scales with signs more tokens than any variant takes at once. In tiles
    of bf16, two tiles, the last of few tokens, and one of few."""
    for name in PACKED_FORMATS:
        k = max(BLOCK_FORMATS[name].block_size, 64)
        for form in ("q8", "f32"):
            yield sample(Case(name, 1, 1, 33, k, form))
            if form == "q8":
                yield sample(Case(name, 1, 1, 505, 2 * k, form))
            yield sample(Case(name, 13, 13, 16, 2 * k, form))
            yield sample(Case(name, 29, 20, 17, 3 * k, form))
        for active in (41, 13):
            yield sample(Case(name, 45, active, 33, k, "tiles"))
    for name in ("Q5_0", "Q4_K"):
        yield sample(Case(name, 101, 99, 17, 2 * BLOCK_FORMATS[name].block_size, "q8"))
    for name, active in (("IQ1_S", 99), ("IQ2_XS", 66), ("IQ4_XS", 70)):
        yield sample(Case(name, 101, active, 33, 512, "q8"))
    for active in (65, 16):  # two parts of the depth
        yield sample(Case("Q8_0", 65, active, 70, 2080, "tiles"))


def gated_sample(
    name: str, rows: int, active: int, n: int, k: int, sums: Sums, act: str = "silu", form: str = "q8"
) -> ops.Sample:
    """A sample with two matrices from different seeds."""
    first, second = (Case(name, rows, active, n, k, form, seed) for seed in (n, n + 1))

    def inputs() -> tuple[ops.Array, ...]:
        return first.x, first.packed(), second.packed()

    attrs = {"wanted": lambda: (first.wanted(), second.wanted()), "sums": sums, "act": act}
    return LazySample(f"{first.label} {sums} {act}", inputs, attrs, (*first.specs, first.specs[1]), first.extents)


def gated_samples(formats: Iterable[str]) -> Iterable[ops.Sample]:
    """Samples of gated_product with weights of these formats: around tiles, and of several programs."""
    for name in formats:
        size = max(BLOCK_FORMATS[name].block_size, 64)
        yield gated_sample(name, 29, 20, 96, 2 * size, ((16, 32), (32, 8)))
    for name in ("Q4_1", "Q6_K"):
        yield gated_sample(name, 1, 1, 64, max(BLOCK_FORMATS[name].block_size, 64), ((32, 0),))
    yield gated_sample("Q8_0", 5, 3, 64, 64, ((32, 0),), "gelu")
    yield gated_sample("Q5_0", 67, 65, 64, 64, ((32, 0),))  # three programs of int16_sums
    for name in formats:
        for active in (65, 16):
            yield gated_sample(name, 67, active, 64, max(BLOCK_FORMATS[name].block_size, 64), (TILES,), form="tiles")
    yield gated_sample("Q8_0", 45, 45, 64, 64, ((32, 0), TILES), "gelu", "tiles")


def gated_errors() -> Iterable[ops.ErrorSample]:
    """Specs and attributes that gated_product refuses."""
    block = BLOCK_FORMATS["Q4_0"]
    w = TensorSpec((64, 64), block)
    x = TensorSpec((2, 64), f32, q8.LAYOUTS[packed_format(w).sums])
    yield ops.ErrorSample((TensorSpec((2, 64), f32), w, w), {"sums": ((32, 0),)}, "x .* of q8")
    yield ops.ErrorSample((x, w, TensorSpec((96, 64), block)), {"sums": ((32, 0),)}, "up as gate is")
    yield ops.ErrorSample((x, w, w), {"sums": (32, 0)}, "sums such")
    yield ops.ErrorSample((x, w, w), {"sums": ((32, 0),), "act": "tanh"}, "act silu or gelu")
    odd = TensorSpec((48, 64), block)
    yield ops.ErrorSample((x, odd, odd), {"sums": ((32, 0),)}, "multiple of 32")

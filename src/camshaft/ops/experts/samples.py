"""Samples of the grouped products: random stacks, experts that repeat, some out of range, fewer tokens than the bound."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.extent import Extent
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.ops import op as ops
from camshaft.ops.quantize import quantize_activations as q8
from camshaft.ops.quantized.packed.formats import PACKED_FORMATS
from camshaft.ops.quantized.packed.packing import interleaved, pack, packed_format
from camshaft.ops.quantized.samples import LazySample, random_blocks
from camshaft.ops.spec import TensorSpec


@dataclass(frozen=True)
class Case:
    """Products of a stack [n_experts, n, k] of a block format. `by_slot`: x has a row per slot, not per token. `turned`: they are
    x W, and not x W^T."""

    name: str
    tokens: int
    active: int
    slots: int
    stack: tuple[int, int, int]
    quantized: bool
    by_slot: bool
    turned: bool = False

    @property
    def label(self) -> str:
        """The sample's name."""
        kind = "q8" if self.quantized else "f32"
        return f"{self.name} {self.tokens}({self.active})x{self.slots} of {'x'.join(map(str, self.stack))} {kind}"

    @cached_property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of x, the packed stack and experts."""
        dim: int | Extent = Extent("T", self.tokens) if self.active < self.tokens else self.tokens
        w = interleaved(TensorSpec(self.stack, BLOCK_FORMATS[self.name]))
        layout = (q8.LAYOUTS[packed_format(w).sums],) if self.quantized else ()
        depth = self.stack[1 if self.turned else 2]
        shape = (dim, self.slots, depth) if self.by_slot else (dim, depth)
        return TensorSpec(shape, f32, *layout), w, TensorSpec((dim, self.slots), i32)

    @cached_property
    def raw(self) -> ops.Array:
        """The file's bytes."""
        n_experts, n, k = self.stack
        return random_blocks(self.name, n_experts * n, k, seed=n)

    @cached_property
    def x(self) -> ops.Array:
        """f32, or the bytes of its q8 form."""
        x = np.random.default_rng(self.tokens).normal(size=self.specs[0].bounds).astype(np.float32)
        kind = packed_format(self.specs[1]).sums
        return q8.to_bytes(*q8.quantize(x), self.specs[0], *kind) if self.quantized else x

    @cached_property
    def experts(self) -> ops.Array:
        """Each token's experts, which are different; some are out of range if there are several tokens."""
        rng, n_experts = np.random.default_rng(self.slots), self.stack[0]
        experts = np.array([rng.permutation(n_experts)[: self.slots] for _ in range(self.tokens)], np.int32)
        if self.tokens > 2:
            experts[1, 0], experts[2, -1] = -1, n_experts
        return experts

    def inputs(self) -> tuple[ops.Array, ...]:
        """x, the packed stack and experts."""
        w = np.zeros(self.specs[1].nbytes, np.uint8)
        pack(self.raw, self.specs[1], w)
        return self.x, w, self.experts

    def wanted(self) -> ops.Array:
        """The float64 products of the active tokens with the file's own dequantized weights."""
        from camshaft.ops.experts.grouped import grouped

        block = BLOCK_FORMATS[self.name]
        weights = block.dequantize(self.raw.reshape(-1, block.block_nbytes)).reshape(self.stack)
        x = q8.from_bytes(self.x, self.specs[0]) if self.quantized else self.x
        weights = weights.swapaxes(1, 2) if self.turned else weights
        return grouped(x[: self.active], weights, self.experts[: self.active])


def sample(case: Case) -> ops.Sample:
    """The case as a sample, with the expected products as a function in its attributes."""
    dim = case.specs[0].shape[0]
    extents = {dim: case.active} if isinstance(dim, Extent) else {}
    return LazySample(case.label, case.inputs, {"wanted": case.wanted}, case.specs, extents)


def quantized_samples() -> Iterable[ops.Sample]:
    """For each format several tokens with a row per slot; all else with few formats."""
    for name in PACKED_FORMATS:
        yield sample(Case(name, 9, 7, 2, (3, 32, max(BLOCK_FORMATS[name].block_size, 64)), True, True))
    yield sample(Case("Q4_0", 1, 1, 2, (4, 16, 64), True, False))
    yield sample(Case("Q4_0", 1, 1, 1, (2, 16, 64), False, False))
    yield sample(Case("Q4_0", 30, 29, 2, (3, 80, 64), True, False))
    yield sample(Case("Q4_1", 9, 7, 2, (3, 33, 64), True, False))
    yield sample(Case("Q6_K", 101, 99, 2, (3, 32, 256), True, False))  # three passes of int16_sums for an expert

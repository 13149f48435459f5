"""Products of f32 by weights that a program unpacks itself: sizes astride tiles, panels, blocks and steps, and any threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import f32
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.graph.graph import ArraySource, Graph
from camshaft.ops.op import KernelVariant, NodeSpec, Target
from camshaft.ops.quantized.products import unpacked
from camshaft.ops.quantized.samples import Case, random_blocks, sample
from camshaft.ops.quantized.transposed_matmul import sample as transposed_sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.validate import check_sample
from tests.support.quick import quick_of

OPS = {False: ops.get("quantized_matmul"), True: ops.get("quantized_matmul_transposed")}


def variant(turns: bool, **values: int) -> KernelVariant:
    """The variant with some values of its own."""

    def build(node: NodeSpec, target: Target) -> Any:
        return unpacked.build_with(node, target, {**unpacked.values_of(node, target, turns), **values}, turns)

    return KernelVariant("unpacked", frozenset({"simd"}), build)


# Rows of x, columns and depth; the last has three steps, of which one is short.
SHAPES = {
    "one tile and a row": (7, 65, 64, {}),
    "three blocks of rows, five panels in groups": (70, 80, 96, {"block": 32, "group": 32}),
    "rows copied, steps of a block": (13, 33, 160, {"part": 64, "copied": 1}),
    "panels of four vectors": (12, 97, 224, {"vectors": 4, "part": 96}),
}


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("name", quick_of(SHAPES, ["one tile and a row"]))
def test_ragged_tiles_panels_blocks_and_steps(name: str, turns: bool) -> None:
    rows, n, k, values = SHAPES[name]
    given = (
        transposed_sample("Q4_1", rows, k + 1, n // 32 + 1)  # the depth is n, the columns are whole blocks
        if turns
        else sample(Case("Q4_1", rows, rows, n, k, "f32"))
    )
    found = check_sample(OPS[turns], variant(turns, **values), cpu_device("simd"), given)
    assert found.max_error <= found.tolerance


def test_the_bits_do_not_depend_on_threads() -> None:
    weights, x = random_blocks("Q4_1", 144, 96, seed=1), np.random.default_rng(0)
    given = {"x": x.normal(size=(300, 96)).astype(np.float32), "dy": x.normal(size=(300, 144)).astype(np.float32)}
    graph = Graph()
    w = graph.constant("w", ArraySource(weights), TensorSpec((144, 96), BLOCK_FORMATS["Q4_1"]))
    graph.output("y", cs.quantized_matmul(graph.input("x", (300, 96), f32), w))
    graph.output("dx", cs.quantized_matmul_transposed(graph.input("dy", (300, 144), f32), w))
    found = []
    for threads in (1, 2, 3):
        with cs.compile(graph, threads=threads) as plan:
            found.append(plan.run(**given))
    for other in found[1:]:
        for name in ("y", "dx"):
            np.testing.assert_array_equal(found[0][name], other[name])

"""Steps whose products with quantized weights round what they multiply to 8 bits, or to bf16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import train
from camshaft.errors import PlanError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.graph.tensor import graph_of
from camshaft.ops.quantized.samples import random_blocks
from camshaft.ops.spec import TensorSpec
from camshaft.train.tuning.options import FinetuneOptions

ROWS, DIM, MANY = 6, 64, 70
BLOCKS = random_blocks("Q8_0", 32, DIM, seed=3)


def loss(p: Any, x: Any) -> Any:
    weights = graph_of(x).constant("w", BLOCKS, TensorSpec((32, DIM), BLOCK_FORMATS["Q8_0"]))
    return cs.mean(cs.square(cs.quantized_matmul(x * p, weights)))


def losses(activations: str, rows: int = ROWS) -> tuple[list[float], str]:
    x = np.random.default_rng(4).normal(size=(rows, DIM)).astype(np.float32)
    step = train.Step(loss, np.ones(DIM, np.float32), train.SGD(), activations=activations, threads=1)
    return [float(step(x, lr=1e-3)) for _ in range(4)], step.plans[0].explain()


def test_steps_in_8_bits_follow_those_in_f32() -> None:
    (exact, plain), (rounded, quantized) = losses("f32"), losses("q8")
    assert "quantize_activations" in quantized
    assert "quantize_activations" not in plain
    assert exact[-1] < exact[0]
    assert rounded != exact
    np.testing.assert_allclose(rounded, exact, rtol=0.01)


@pytest.mark.full
def test_steps_in_bf16_follow_those_in_f32_and_round_the_gradients_too() -> None:
    (exact, _), (rounded, tiled) = losses("f32", MANY), losses("bf16", MANY)
    assert tiled.count(".tiles: quantize_activations/") == 2  # of x and of dy
    assert rounded != exact
    np.testing.assert_allclose(rounded, exact, rtol=0.005)


def test_only_the_method_that_can_takes_8_bits() -> None:
    assert FinetuneOptions(activations="q8").activations == "q8"
    with pytest.raises(PlanError, match="got activations='q4'; wanted f32, q8, bf16"):
        FinetuneOptions(activations="q4")
    with pytest.raises(PlanError, match="for the method full; wanted it for lora"):
        FinetuneOptions(activations="q8", method="full")

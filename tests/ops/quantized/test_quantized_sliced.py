"""quantized_matmul of few tokens on GPUs: bits that do not depend on the other tokens, and where it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.ops.op import NodeSpec
from camshaft.ops.quantized.products import sliced
from camshaft.ops.quantized.samples import Case, sample
from camshaft.validation.run import run_variant
from camshaft.validation.validate import node_of
from tests.support.devices.simulated_gpu import SimulatedDevice
from tests.support.quick import full

OP = ops.get("quantized_matmul")
SLICED = sliced.VARIANT


def _alone(given, node: NodeSpec, token: int) -> np.ndarray:
    """The output of one token of a sample by itself."""
    x, w = node.inputs
    one = NodeSpec((replace(x, shape=(1, *x.shape[1:])), w), OP.infer((replace(x, shape=(1, *x.shape[1:])), w), {}), {})
    (found,) = run_variant(SLICED, one, SimulatedDevice(), (given.inputs[0][token : token + 1], given.inputs[1]))
    return found[0]


@pytest.mark.parametrize(("name", "k"), [full("Q4_1", 96), ("Q6_K", 512), full("Q8_0", 288)])
def test_a_token_has_the_bits_that_it_has_alone(name: str, k: int) -> None:
    given = sample(Case(name, 13, 13, 33, k, "f32"))
    node = node_of(OP, given)
    (together,) = run_variant(SLICED, node, SimulatedDevice(), given.inputs)
    for token in (0, 7, 8, 12):
        np.testing.assert_array_equal(together[token], _alone(given, node, token))


@pytest.mark.parametrize(("tokens", "chosen"), [(1, "sliced"), (16, "sliced"), (17, "tile")])
def test_gpus_choose_it_for_few_tokens(tokens: int, chosen: str) -> None:
    node, gpu = node_of(OP, sample(Case("Q4_K", tokens, tokens, 64, 512, "q8"))), SimulatedDevice()
    fit = [v for v in OP.variants if "cuda" in v.backends and v.supports(node, gpu) is None]
    assert min(fit, key=lambda v: v.cost(node, gpu)).name == chosen


def test_a_cpu_is_refused() -> None:
    node = node_of(OP, sample(Case("Q4_0", 1, 1, 16, 96, "q8")))
    assert "threads of a workgroup" in (SLICED.supports(node, cpu_device()) or "")

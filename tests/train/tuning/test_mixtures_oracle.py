"""Gradients of mixtures of experts and recurrent models by all their tensors: against torch's of the model in transformers, and
against differences of plain programs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.graph.graph import Graph
from camshaft.train.tuning.methods.full import FullModel
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.references import evaluated

pytestmark = pytest.mark.oracle
Array = np.ndarray[Any, Any]
NAMES = (
    *("mixtral", "qwen2moe", "qwen3moe", "olmoe", "granitemoe", "gpt-oss", "deepseek2-v3", "dots1", "ernie4_5-moe", "glm4moe"),
    *("mamba", "mamba2", "falcon-mamba", "jamba", "granitehybrid", "nemotron_h", "nemotron_h_moe"),
    *("lfm2", "lfm2moe", "qwen3next", "qwen35", "qwen35moe"),
)  # fmt: skip
# Models that transformers lacks: programs in float64 of the file's tensors.
PLAIN = ("smallthinker", "plamo2", "rwkv6", "rwkv7", "deci")
# What the file has as another function of the model's parameter, exp(A_log), and what is not a parameter there.
OTHERWISE = (".ssm_a", ".exp_probs_b.bias")


def ours(path: Path, ids: Array, targets: Array) -> dict[str, Array]:
    """The gradients by the tensors of the file, by references."""
    graph = Graph()
    with FullModel(path) as model:
        start = model.parameters()
        parameters = {name: graph.input(name, a.shape, "f32") for name, a in start.items()}
        rows = np.tile(np.arange(ids.shape[1], dtype=np.int32), (len(ids), 1))
        given = (graph.constant(n, a) for n, a in (("ids", ids), ("rows", rows), ("targets", targets)))
        loss = model.loss(parameters, *given)
        for name, gradient in zip(start, graph.gradients(loss, list(parameters.values())), strict=True):
            graph.output(name, gradient)
        return evaluated(graph, start, {})


def theirs(name: str, ids: Array, targets: Array) -> dict[str, Array]:
    """Those of the model in transformers, as its parameters are in the file."""
    torch = pytest.importorskip("torch")
    from scripts.oracles import tiny_models

    seed, model = tiny_models.SEEDED[name]
    network = tiny_models.build(model, seed).double()
    logits = network(torch.tensor(ids), use_cache=False).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.tensor(targets).flatten().long()).backward()
    files = []
    for scale in (1.0, 0.0):  # of norms the file has weights with 1 added
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad * scale)
        files.append({n: np.array(a, np.float64) for n, a in tiny_models.tensors(model, network)})
    return {tensor: array - files[1][tensor] for tensor, array in files[0].items()}


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    rng, n_vocab = np.random.default_rng(11), tiny_logits(name)[1].shape[1]
    ids, targets = (rng.integers(3, n_vocab, (2, 21)).astype(np.int32) for _ in range(2))
    found, wanted = ours(tiny_model(name, tmp_path), ids, targets), theirs(name, ids, targets)
    compared = [tensor for tensor in found if not tensor.endswith(OTHERWISE)]
    assert any("_exps" in t or "ssm_" in t or "shortconv" in t for t in compared)
    for tensor in compared:
        theirs_of = wanted[tensor].reshape(found[tensor].shape)
        scale = np.abs(theirs_of).max() + 1e-5
        np.testing.assert_allclose(found[tensor] / scale, theirs_of / scale, atol=2e-3, err_msg=tensor)


@pytest.mark.parametrize("name", PLAIN)
def test_gradients_are_differences_of_a_plain_program(name: str, tmp_path: Path) -> None:
    """In float64 steps are so small that a router near a tie, as smallthinker's, chooses the same experts."""
    pytest.importorskip("torch")
    from scripts.oracles import tiny_models
    from scripts.oracles.plain.decoder import PlainDecoder

    seed, model = tiny_models.SEEDED[name]
    tensors = {tensor: a.astype(np.float64) for tensor, a in tiny_models.build(model, seed).tensors.items()}
    rng, step = np.random.default_rng(12), 1e-6
    ids, targets = (rng.integers(3, tiny_logits(name)[1].shape[1], (2, 13)).astype(np.int32) for _ in range(2))

    def loss(moved: dict[str, Array]) -> float:
        found = 0.0
        for row, wanted in zip(ids, targets, strict=True):
            logits = PlainDecoder(model, tensors | moved).logits(row.tolist())
            found += float((np.logaddexp.reduce(logits, axis=-1) - logits[np.arange(len(row)), wanted]).mean())
        return found / len(ids)

    for tensor, gradient in ours(tiny_model(name, tmp_path), ids, targets).items():
        along = rng.normal(size=gradient.shape)
        ends = [loss({tensor: tensors[tensor] + sign * step * along}) for sign in (1, -1)]
        scale = float(np.linalg.norm(gradient)) + 1e-5
        found = float((gradient * along).sum()) / scale
        assert found == pytest.approx((ends[0] - ends[1]) / (2 * step) / scale, abs=2e-3), tensor

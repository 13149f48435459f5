"""Fine-tuning of mixtures of experts and recurrent models: the training graph is the model, stacks of experts get adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from camshaft import train
from camshaft.backends import registry
from camshaft.errors import ModelError
from camshaft.graph.graph import Graph
from camshaft.train.tuning.data.examples import Example
from camshaft.train.tuning.data.rows import one_each, packed
from tests.support.fixtures import tiny_logits, tiny_model
from tests.support.needs import require
from tests.support.references import evaluated
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.tuning.test_lora import drawn, logits

Array = np.ndarray[Any, Any]
QUICK = ("mixtral", "mamba2", "qwen3next", "lfm2", "rwkv7")
NAMES = (
    *("afmoe", "bailingmoe2", "dbrx", "deepseek2-lite", "deepseek2-v3", "dots1", "ernie4_5-moe", "exaone-moe", "gemma4-moe"),
    *("glm4moe", "gpt-oss", "granitemoe", "hunyuan-moe", "llama4", "mellum", "minimax-m2", "olmoe", "phimoe", "qwen2moe"),
    *("qwen3moe", "smallthinker", "falcon-h1", "falcon-mamba", "granitehybrid", "jamba", "kimi-linear", "lfm2moe", "mamba"),
    *("nemotron_h", "nemotron_h_moe", "plamo2", "qwen35", "qwen35moe", "rwkv6"),
)  # fmt: skip

# Their routers are so near a tie at these tokens that a step in f32 changes a choice: see test_mixtures_oracle.py.
TIES = ("qwen3next", "smallthinker", "qwen35moe")
REFUSED = ("mamba", "falcon-mamba", "jamba", "llama4")  # scans of Mamba 1, and attention in chunks, take no packed rows


def quick(names: tuple[str, ...]) -> list[Any]:
    return [*names, *(pytest.param(n, marks=pytest.mark.full) for n in (*QUICK, *NAMES) if n not in names)]


@pytest.mark.parametrize("name", quick(QUICK))
def test_the_training_graph_is_the_model(name: str, tmp_path: Path) -> None:
    """The logits are those that transformers, or a plain program, gave."""
    tokens, wanted = tiny_logits(name)
    with train.LoraModel(tiny_model(name, tmp_path), train.LoraConfig(rank=2)) as model:
        found = logits(model, model.adapters(), tokens)
    np.testing.assert_allclose(found, wanted, atol=2e-4)


def loss_graph(model: train.LoraModel, start: Any, examples: Any) -> tuple[Graph, Any]:
    """The loss of examples as a graph of the adapters, which are inputs."""
    graph = Graph()
    inputs = {n: {p: graph.input(f"{n}.{p}", a.shape, "f32") for p, a in parts.items()} for n, parts in start.items()}
    given = (graph.constant(f"given {i}", a) for i, a in enumerate(examples.arrays))
    return graph, (model.loss(inputs, *given), inputs)


@pytest.mark.parametrize("name", quick(("mixtral", "rwkv7")))
def test_gradients_of_adapters_are_central_differences(name: str, tmp_path: Path) -> None:
    if name in TIES:
        pytest.skip("a router is near a tie")
    rng = np.random.default_rng(4)
    rows = one_each([Example(tuple(rng.integers(5, 40, 12).tolist()), (True,) * 12) for _ in range(2)])
    with train.LoraModel(tiny_model(name, tmp_path), train.LoraConfig(rank=2)) as model:
        start = drawn(model)
        graph, (loss, inputs) = loss_graph(model, start, rows)
        wrt = [t for parts in inputs.values() for t in parts.values()]
        for tensor, gradient in zip(wrt, graph.gradients(loss, wrt), strict=True):
            graph.output(f"d {tensor.name}", gradient)
        graph.output("loss", loss)
        values = {f"{n}.{p}": a for n, parts in start.items() for p, a in parts.items()}
        found = evaluated(graph, values, {})
        along = {key: rng.normal(size=a.shape) for key, a in values.items()}
        for kind in ("a", "b"):
            steps = {k: 5e-5 * d * k.endswith(kind) for k, d in along.items()}
            moved = [
                evaluated(graph, {k: (a + sign * steps[k]).astype(np.float32) for k, a in values.items()}, {})["loss"]
                for sign in (1, -1)
            ]
            terms = sum(float((found[f"d {k}"] * steps[k]).sum()) for k in values)
            assert (moved[0] - moved[1]) / 2 == pytest.approx(terms, rel=3e-2, abs=4e-6)


@pytest.mark.parametrize("name", quick(("mixtral",)))
def test_an_adapter_of_experts_is_read_back_and_merged(name: str, tmp_path: Path) -> None:
    tokens, plain = tiny_logits(name)
    base, saved, merged = tiny_model(name, tmp_path), tmp_path / "adapter.gguf", tmp_path / "merged.gguf"
    with train.LoraModel(base, train.LoraConfig(rank=2, alpha=6.0)) as model:
        adapters = drawn(model)
        wanted = logits(model, adapters, tokens)
        train.save_adapter(saved, model, adapters)
    assert np.abs(wanted - plain).max() > 0.05
    theirs = {t.name: t for t in gguf.GGUFReader(saved).tensors}
    stacks = [n for n, pair in adapters.items() if pair["a"].ndim == 3]
    assert all(list(theirs[f"{n}.weight.lora_a"].shape) == list(adapters[n]["a"].shape[::-1]) for n in stacks)
    train.merge(base, saved, merged)
    with train.LoraModel(merged, train.LoraConfig(rank=1)) as model:
        np.testing.assert_allclose(logits(model, {}, tokens), wanted, atol=3e-4)


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("name", quick(("mamba2", "lfm2", "rwkv6")))
def test_packed_examples_have_the_loss_of_examples_alone(name: str, tmp_path: Path) -> None:
    if name in REFUSED:
        refused = pytest.raises(ModelError, match="got packed rows; wanted a sequence in each row, without pack")
        with train.LoraModel(tiny_model(name, tmp_path), train.LoraConfig(rank=2)) as model, refused:
            loss_graph(model, {}, packed([Example((5, 6, 7), (True,) * 3)] * 4, 16))
        return
    rng = np.random.default_rng(3)
    sizes = (9, 17, 5, 12, 3, 20)
    found = [Example(tuple(rng.integers(5, 40, n).tolist()), (False, *(True,) * (n - 1))) for n in sizes]
    losses = []
    with train.LoraModel(tiny_model(name, tmp_path), train.LoraConfig(rank=2)) as model:
        for rows in (one_each(found), packed(found, 33)):
            graph, (loss, _) = loss_graph(model, {}, rows)
            graph.output("loss", loss)
            losses.append(float(evaluated(graph, {}, {})["loss"]))
    assert losses[0] == pytest.approx(losses[1], rel=2e-5)


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"got dora=True for blk.0.ffn_gate_exps; wanted targets without experts' stacks"
    ):
        train.LoraModel(tiny_model("mixtral", tmp_path), train.LoraConfig(rank=2, dora=True))
    rows = packed([Example((5, 6, 7), (True,) * 3)] * 4, 16)
    with (
        train.LoraModel(tiny_model("mamba", tmp_path), train.LoraConfig(rank=2)) as model,
        pytest.raises(ModelError, match="Mamba 1 got packed rows"),
    ):
        loss_graph(model, {}, rows)


def test_routers_are_learned_only_by_their_name(tmp_path: Path) -> None:
    path = tiny_model("mixtral", tmp_path)
    for targets, has in ((("*",), False), (("ffn_*",), False), (("ffn_gate_inp",), True)):
        with train.LoraModel(path, train.LoraConfig(rank=2, targets=targets)) as model:
            assert any(name.endswith("ffn_gate_inp") for name in model.names) is has


@pytest.mark.soak
@pytest.mark.parametrize("gpu", ["webgpu", "cuda"])
@pytest.mark.parametrize("name", ["mamba", "mamba2", "qwen3next", "rwkv6", "rwkv7", "llama"])
def test_models_train_on_gpus_to_the_same_losses(name: str, gpu: str, tmp_path: Path) -> None:
    """A software GPU compiles the kernels of a step for a minute or more."""
    reason = registry.backend_named(gpu).absent()
    if gpu == "cuda" and reason is not None:
        pytest.skip(f"{gpu}: {reason}")
    require(reason is None, f"{gpu}: {reason}")
    rng, losses = np.random.default_rng(4), []
    rows = one_each([Example(tuple(rng.integers(5, 40, 12).tolist()), (True,) * 12) for _ in range(2)])
    with train.LoraModel(tiny_model(name, tmp_path), train.LoraConfig(rank=2)) as model:
        for backend in ("simd", gpu):
            with train.Step(model.loss, model.parameters(), train.AdamW(), clip=1.0, backend=backend) as step:
                losses.append([step(*rows.arrays, lr=1e-2) for _ in range(4)])
                shown = step.plan(*rows.arrays).explain()
        assert not [line for line in shown.splitlines() if "_gradient/" in line and f"on {gpu}" not in line]
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-3)

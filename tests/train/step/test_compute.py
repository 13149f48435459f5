"""Steps that compute in bf16 and f16: what is rounded, what it changes, and the scale of the loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import train
from camshaft.dtypes import bf16
from camshaft.errors import CamshaftError, TrainingError
from camshaft.graph.graph import Graph
from camshaft.graph.passes.mixed_precision import with_mixed_precision
from camshaft.train.step.scaling import LossScaling
from tests.support.fixtures import tiny_model
from tests.support.quick import full
from tests.support.references import evaluated
from tests.train.by_references import by_references  # noqa: F401 - a fixture
from tests.train.small import examples, loss, parameters, same

Array = np.ndarray[Any, Any]
X, Y = examples(8)
IDS = np.random.default_rng(2).integers(5, 45, (4, 17)).astype(np.int32)
BATCH = IDS[:, :-1], np.tile(np.arange(16, dtype=np.int32), (4, 1)), IDS[:, 1:].copy()
# What a curve of losses may differ from that in f32, as a share of it.
NEAR = {"bf16": 2e-2, "f16": 5e-3}


def test_results_are_rounded_but_for_what_losses_read() -> None:
    graph = Graph()
    x, w, v = graph.input("x", (6, 8), "f32"), graph.state("w", Graph().input("w", (8, 8), "f32").spec), np.ones(8)
    h = cs.rms_norm(x, v.astype(np.float32), eps=1e-5)
    h = h + cs.silu(h.reshape(3, 2, 8).reshape(6, 8) @ w)
    logits = cs.softcap(h @ w, cap=30.0) * 2.0
    graph.output("loss", cs.cross_entropy(logits, np.arange(6)))
    made = with_mixed_precision(graph, bf16)
    dtypes = {node.op.name.split(" ")[0]: node.outputs[0].dtype.name for node in made.nodes}
    assert {n: d for n, d in dtypes.items() if d == "bf16"}.keys() == {"rms_norm", "silu", "add"}
    assert dtypes["softcap"] == dtypes["multiply"] == dtypes["cross_entropy"] == "f32"
    names = [node.op.name for node in made.nodes]
    assert (names.count("matmul in bf16"), names[-4:-1]) == (2, ["matmul in bf16", "softcap", "multiply"])
    (gradient,) = made.gradients(made.outputs["loss"], [made.states["w"]])
    assert gradient.dtype.name == "f32"
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(6, 8)).astype(np.float32), "w": rng.normal(size=(8, 8)).astype(np.float32)}
    found, wanted = (float(evaluated(g, given, {})["loss"]) for g in (made, graph))
    assert 0 < abs(found - wanted) < 0.02 * wanted
    with pytest.raises(CamshaftError, match="got a graph with gradients"):
        with_mixed_precision(made, bf16)


@pytest.mark.usefixtures("by_references")
def test_losses_are_near_and_memory_is_less(tmp_path: Path) -> None:
    losses, sizes = {}, {}
    lora = train.LoraConfig(rank=2, targets=("attn_q", "ffn_down"))
    with train.LoraModel(tiny_model("llama", tmp_path), lora) as model:
        for compute in ("f32", *NEAR):
            step = train.Step(model.loss, model.adapters(), train.AdamW(), clip=1.0, compute=compute)
            losses[compute] = [step(*BATCH, lr=5e-2) for _ in range(2)]
            long = (np.tile(a, (4, 1)) for a in BATCH)
            sizes[compute] = step.estimated_nbytes(*long)
            assert (step.skipped, step.loss_scale) == (0, 2.0**16 if compute == "f16" else 1.0)
    assert losses["f32"][-1] < losses["f32"][0] - 0.1
    for compute, most in NEAR.items():
        assert losses[compute] != losses["f32"]
        np.testing.assert_allclose(losses[compute], losses["f32"], rtol=most)
        assert sizes[compute] < 0.85 * sizes["f32"]


def overflowing(p: Any, x: Any) -> Any:
    """A loss whose gradients in f16 are those of `x`, times the scale."""
    return cs.sum(cs.relu(p * x) @ np.ones((4, 1), np.float32))


@pytest.mark.usefixtures("by_references")
def test_the_scale_is_halved_where_gradients_overflow_and_the_step_is_skipped() -> None:
    start = np.full((2, 4), 1.0, np.float32)
    step = train.Step(overflowing, start, train.AdamW(), compute="f16", scaling=LossScaling(2.0**17, every=2))
    x = np.ones((2, 4), np.float32)
    before = step.states
    assert step(x, lr=0.1) == 8.0
    after = step.states
    assert (step.number, step.skipped, step.loss_scale) == (1, 1, 2.0**16)
    assert all(np.array_equal(after[n], before[n]) for n in before if not n.startswith(("scaling/", "number")))
    step(x, lr=0.1)
    assert (step.skipped, step.loss_scale) == (2, 2.0**15)
    assert step.parameters.tobytes() == start.tobytes()
    step(x, lr=0.1)
    np.testing.assert_allclose(step.parameters, start - 0.1, rtol=1e-2)  # AdamW's first step, not its third
    assert step.gradient_norm == pytest.approx(np.sqrt(8))
    step(x, lr=0.1)
    assert (step.number, step.skipped, step.loss_scale) == (4, 2, 2.0**16)
    step(x, lr=0.1)
    assert (step.skipped, step.loss_scale) == (3, 2.0**15)
    with pytest.raises(TrainingError, match="step 6: the loss is nan"):
        step(x * np.nan, lr=0.1)
    assert (step.number, step.loss_scale) == (5, 2.0**15)


@pytest.mark.usefixtures("by_references")
def test_a_scale_of_1_is_not_halved() -> None:
    step = train.Step(
        lambda p, x: cs.sum(cs.relu(p * x) @ np.full((4, 1), 7e4, np.float32)),
        np.full((2, 4), 1.0, np.float32),
        train.SGD(),
        compute="f16",
        scaling=LossScaling(2.0),
    )
    x = np.ones((2, 4), np.float32)
    step(x, lr=0.1)
    assert (step.skipped, step.loss_scale) == (1, 1.0)
    with pytest.raises(TrainingError, match=r"step 2: the loss is 560000, the norm of the gradients (inf|nan)"):
        step(x, lr=0.1)
    assert step.number == 1


@pytest.mark.usefixtures("by_references")
def test_a_resumed_run_in_f16_is_equal_to_the_bit(tmp_path: Path) -> None:
    def trained(folder: Path, *parts: int) -> tuple[train.Trainer, list[float]]:
        losses: list[float] = []
        for steps in parts:
            trainer = train.Trainer(
                loss,
                parameters(),
                train.AdamW(),
                lambda n: (np.roll(X, n), np.roll(Y, n)),
                lr=1e-2,
                folder=folder,
                compute="f16",
                scaling=LossScaling(2.0**24, every=2),
                micro_batches=2,
            )
            trainer.resume()
            seen: list[train.Progress] = []
            losses += trainer.run(steps, seen.append)
        assert 0 < seen[-1].skipped == trainer.step.skipped < steps
        assert f", {seen[-1].skipped} skipped" in str(seen[-1])
        return trainer, losses

    (whole, losses), (parts, found) = trained(tmp_path / "a", 6), trained(tmp_path / "b", 3, 6)
    assert found == losses
    assert same(parts.parameters, whole.parameters)
    assert parts.step.loss_scale == whole.step.loss_scale


@pytest.mark.usefixtures("by_references")
@pytest.mark.parametrize("method", ["lora", full("dpo"), full("full")])
def test_models_are_fine_tuned_in_16_bits(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("camshaft.train.record.recorder.memory_by_kind", lambda plans: {})
    data, out = tmp_path / "data.jsonl", tmp_path / "out.gguf"
    line = {"prompt": "a", "chosen": " b", "rejected": " c"} if method == "dpo" else {"text": "some words and more"}
    data.write_text("\n".join([json.dumps(line)] * 4), "utf-8")
    options = train.FinetuneOptions(steps=2, batch=2, lr=1e-3, method=method, compute="f16")
    records = train.Records(tmp_path / "report.html")
    done = train.finetune(tiny_model("llama", tmp_path), data, out, options=options, records=records)
    assert (done.n_steps, out.exists()) == (2, True)
    points = [json.loads(line) for line in (tmp_path / "out.gguf.checkpoints" / "history.jsonl").open()]
    assert points[-1]["skipped"] == done.n_skipped
    assert ("skipped steps" in (tmp_path / "report.html").read_text()) == bool(done.n_skipped)
    with pytest.raises(CamshaftError, match=r"was trained on .* in f16"):
        train.finetune(
            tiny_model("llama", tmp_path), data, out, force=True, resume=True,
            options=train.FinetuneOptions(steps=3, batch=2, lr=1e-3, method=method),
        )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute": "f8"}, "got compute='f8'; wanted f32, bf16, f16"),
        ({"scaling": LossScaling()}, "with compute=f32; wanted LossScaling with f16"),
        ({"compute": "bf16", "parameters": np.ones(3)}, "compute=bf16 with parameters of f64; wanted f32"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    given = {"parameters": np.ones(3, np.float32), **options}
    with pytest.raises(CamshaftError, match=message):
        train.Step(cs.sum, given.pop("parameters"), train.SGD(), **given)
    for wrong in ({"start": 3.0}, {"start": 0.5}, {"every": 0}):
        with pytest.raises(CamshaftError, match="LossScaling: got"):
            LossScaling(**wrong)


@pytest.mark.full
@pytest.mark.parametrize("compute", ["bf16", pytest.param("f16", marks=pytest.mark.soak)])
def test_any_number_of_threads_and_layers_computed_once_more_give_the_same_bits(compute: str, tmp_path: Path) -> None:
    found = []
    for threads, recomputed in ((1, 0), (5, 2)):
        with train.LoraModel(tiny_model("llama", tmp_path), train.LoraConfig(rank=2)) as model:
            model.recomputed = recomputed
            step = train.Step(model.loss, model.adapters(), train.AdamW(), compute=compute, threads=threads)
            found.append([step(*BATCH, lr=1e-2) for _ in range(3)])
    assert found[1] == found[0]


@pytest.mark.oracle
@pytest.mark.usefixtures("by_references")
def test_the_scale_is_that_of_torchs_scaler() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    step = train.Step(
        lambda p, x: cs.sum(cs.relu(p * 1.0) @ x),
        np.ones((2, 4), np.float32),
        train.SGD(),
        compute="f16",
        scaling=LossScaling(every=3),
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=3)
    p = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([p], lr=0.0)
    for n in range(30):
        x = np.full((4, 1), 2.0 ** rng.integers(-4, 3), np.float32)
        before, skipped = step.loss_scale, step.skipped
        step(x, lr=0.0)
        # torch scales and rounds the same gradients
        p.grad = torch.tensor([before * x[0, 0]]).half().float()
        scaler.scale(torch.zeros(1))
        scaler.step(optimizer)
        scaler.update()
        assert step.loss_scale == scaler.get_scale(), n
        assert (step.skipped > skipped) == bool(torch.isinf(p.grad).any())
    assert 3 < step.skipped < 27

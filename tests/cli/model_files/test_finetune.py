"""`camshaft finetune` and `camshaft merge` hand their options on and say in a line what they did."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import train
from camshaft.cli.options import adapter_of
from camshaft.cli.tuning_options import LearningOptions
from camshaft.errors import PlanError, SettingError
from camshaft.models.files.quantize import quantize
from camshaft.train.record.history import Point
from camshaft.train.tuning import finetuning as library
from camshaft.train.tuning.method_options import METHODS, OPTIONS
from camshaft.train.tuning.options import FinetunePlan, FinetuneResult
from tests.support.fixtures import tiny_model

NAMES = ("rank", "alpha", "dropout", "rslora", "dora")


def test_options_are_handed_on_and_progress_is_printed(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def finetune(model: Path, data: Path, out: Path, **options: Any) -> FinetuneResult:
        given.update(options, model=model, data=data)
        for step in (1, 2, 5, 20):
            options["each"](Point(step, 2.5 / step, 1e-3, 0.5, 0.1, None, 64), 20)
        return FinetuneResult(out, 40, 20, 2.5, 0.125, 999, 12.0)

    monkeypatch.setattr(library, "finetune", finetune)
    model, data, out = tiny_model("llama", tmp_path), tmp_path / "d.jsonl", tmp_path / "a.gguf"
    words = ["--rank", "4", "--target", "attn_*", "--target", "ffn_up", "--steps", "20", "--lr", "1e-3"]
    words += ["--batch", "2", "--resume", "--seed", "3", "--dora"]
    result = cli("finetune", str(model), str(data), str(out), *words)
    assert result.exit_code == 0, result.stderr
    assert (given["lora"].rank, given["lora"].targets, given["lora"].seed) == (4, ("attn_*", "ffn_up"), 3)
    assert (given["options"].steps, given["options"].batch, given["options"].lr) == (20, 2, 1e-3)
    assert given["resume"]
    assert given["lora"].dora
    assert result.stderr.splitlines() == [
        "camshaft: training (20 steps)",
        "camshaft: training: 2 of 20 steps, loss 1.2500, lr 0.001, 640 tokens/s, 0:02 left",
        "camshaft: training: 5 of 20 steps, loss 0.5000, lr 0.001, 640 tokens/s, 0:02 left",
        "camshaft: training: 20 of 20 steps, loss 0.1250, lr 0.001, 640 tokens/s, 0:00 left",
    ]
    assert result.stdout == f"{out}: 20 steps on 40 examples; loss 2.500 to 0.125; 999 tokens learned in 12 s\n"
    found = json.loads(cli("finetune", str(model), str(data), str(out), "--json").stdout)
    assert (found["n_steps"], found["last_loss"]) == (20, 0.125)


def test_the_options_defaults_are_the_library_s() -> None:
    assert LearningOptions().made() == (train.LoraConfig(), train.FinetuneOptions())
    assert [getattr(train.LoraConfig(), n) for n in NAMES] == [OPTIONS[n].default for n in NAMES]


@pytest.mark.parametrize("method", METHODS)
def test_an_option_of_other_methods_is_refused_whatever_its_value(method: str) -> None:
    own = {"file_type": "Q4_0"} if method == "qat" else {}
    for name, option in OPTIONS.items():
        # the default, if it can be given
        value = {"file_type": "F16", "dropout": 0.0, "activations": "q8"}.get(name, option.default or True)
        given = {**own, "method": method, name: value}
        if method in option.methods:
            LearningOptions(**given).made()
            continue
        methods = ", ".join(option.methods)
        with pytest.raises(PlanError, match=f"got {name}=.* for the method {method}; wanted it for {methods}"):
            LearningOptions(**given).made()


def test_the_help_names_the_methods_of_each_option(cli: Any) -> None:
    shown = re.sub(r"[\s│]+", " ", cli("finetune", "--help").stdout)
    for option in OPTIONS.values():
        assert f"[{', '.join(option.methods)}]" in shown
    assert "default: 0.05. [embedding]" in shown


def test_the_plan_of_a_run_is_shown(cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def plan(model: Path, data: Path, **options: Any) -> FinetunePlan:
        given.update(options)
        return FinetunePlan({"weights": 98_000_000, "optimizer": 5_000_000}, 7, 30, 12, 10, 96, 75, 90_000_000)

    monkeypatch.setattr(library, "plan_finetune", plan)
    words = [str(tiny_model("llama", tmp_path)), "d.jsonl", str(tmp_path / "a.gguf"), "--plan", "--memory", "1.5G"]
    result = cli("finetune", *words)
    assert given["options"].memory == 1_500_000_000
    shown = dict(re.split(r"  +", line) for line in result.stdout.splitlines())
    assert (shown["weights"], shown["program, about"], shown["memory in all"]) == ("98.0 MB", "90.0 MB", "193.0 MB")
    assert (shown["layers recomputed"], shown["steps"]) == ("7 of 30", "75")
    assert json.loads(cli("finetune", *words, "--json").stdout)["recomputed"] == 7


def test_merge_says_when_rounding_took_the_adapter(cli: Any, tmp_path: Path) -> None:
    """A small change of weights in Q4_1 is rounded back to what they were; in Q8_0 it is left."""
    base, adapter, out = tmp_path / "q.gguf", tmp_path / "a.gguf", tmp_path / "out.gguf"
    quantize(tiny_model("llama", tmp_path), base, "Q4_1", pure=True)
    with train.LoraModel(base, train.LoraConfig(targets=("attn_q",))) as model:
        pairs = {name: {"a": pair["a"], "b": np.full_like(pair["b"], 1e-3)} for name, pair in model.adapters().items()}
        train.save_adapter(adapter, model, pairs)
    result = cli("merge", str(base), str(adapter), str(out))
    last = result.stderr.splitlines()[-1]
    assert re.fullmatch(r"camshaft: rounding left \d+% of the adapter's change; --type Q8_0 or F16 keeps it", last)
    result = cli("merge", str(base), str(adapter), str(out), "--force", "--type", "Q8_0")
    assert (result.exit_code, "rounding" in result.stderr) == (0, False)


def test_a_strength_follows_the_file(tmp_path: Path) -> None:
    given = tmp_path / "a:2"
    given.write_bytes(b"")
    assert [adapter_of(text) for text in ("a.gguf", "a.gguf:0.5", "C:/a:-1", str(given))] == [
        ("a.gguf", 1.0),
        ("a.gguf", 0.5),
        ("C:/a", -1.0),
        (str(given), 1.0),
    ]
    with pytest.raises(SettingError, match="no such file, and 'x' is not a number"):
        adapter_of("a.gguf:x")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("finetune MODEL data.jsonl out --method dora", "--method='dora'; wanted lora, dpo, full, qat"),
        ("finetune MODEL data.jsonl out", "data.jsonl: cannot be read"),
        ("finetune MODEL data.jsonl out --memory lots", "--memory lots: wanted a size such as 800M or 2G"),
        ("finetune MODEL DATA out --patience 3", "--patience=3 without a validation file; wanted --validation=FILE"),
        ("finetune MODEL DATA out --validate-every 3", "--validate-every=3 without a validation file"),
        (
            "finetune MODEL data.jsonl a.gguf --dora",
            "a.gguf: GGUF adapters hold no magnitudes of DoRA; wanted the name of a f",
        ),
        ("finetune MODEL data.jsonl out --lr nan", "got --lr=nan; wanted a finite number from 0 on"),
        ("finetune MODEL data.jsonl out --type F16", "for the method lora; wanted it for full, qat, embedding"),
        ("finetune MODEL data.jsonl out --beta 1", "got --beta=1.0 for the method lora; wanted it for dpo"),
        (
            "finetune MODEL data.jsonl o.gguf --method full --rank 8",
            "--rank=8 for the method full; wanted it for lora, dpo",
        ),
        ("finetune MODEL data.jsonl out --dropout 1", "got --dropout=1.0; wanted a number from 0 to below 1"),
        ("finetune MODEL data.jsonl out --method dpo --pack", "for the method dpo; wanted it for lora, full, qat"),
        pytest.param(
            "finetune MODEL DATA out --batch 1 --memory 0.001M",
            "wanted at most 0.0 MB (lower --batch, raise --micro-batches, or lower --length)",
            marks=pytest.mark.full,
        ),
        ("finetune MODEL data.jsonl out --report .", ".: not writable: it is a folder"),
        ("finetune MODEL data.jsonl out --target nothing", "got the target 'nothing', which no matrix has"),
        (
            "finetune MODEL DATA out --batch 9",
            "got batches of 9; wanted 1 to the 2 examples of the file (lower --batch)",
        ),
        ("finetune MODEL DATA out --pack", "wanted 1 to the 1 rows that 2 examples are packed into (lower --batch)"),
        ("generate MODEL -p a --adapter MODEL", "wanted a GGUF adapter of type lora"),
        (
            "merge MODEL MODEL out",
            "its general.type is missing and its adapter.type missing; wanted a GGUF adapter of type lora",
        ),
        ("merge MODEL . out", "adapter_config.json: there is no such file"),
        ("generate MODEL -p a --adapter .:0.5", "adapter_config.json: there is no such file"),
    ],
)
def test_errors_are_one_line(cli: Any, words: str, message: str, tmp_path: Path) -> None:
    files = {"MODEL": str(tiny_model("llama", tmp_path)), "DATA": str(tmp_path / "two.jsonl")}
    Path(files["DATA"]).write_text('{"text": "ab"}\n' * 2, "utf-8")
    result = cli(*(files.get(word, word) for word in words.split()))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr.splitlines()[-1]

"""`camshaft distill-quantize` hands its options on and says what became less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from camshaft.train.trainer import Progress
from camshaft.train.tuning import distillation as library
from camshaft.train.tuning.distillation import DistillResult
from tests.support.fixtures import tiny_model


def test_options_are_handed_on_and_the_result_is_printed(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def distill(model: Path, out: Path, file_type: str, data: Path, **options: Any) -> DistillResult:
        given.update(options, file_type=file_type, data=data)
        options["each"](Progress(5, 0.25, 1e-3, 0.5, 0.1, 0.3), 5)
        return DistillResult(out, 70_000_000, 0.4, 0.1, 5, 12.0)

    monkeypatch.setattr(library, "distill_quantize", distill)
    model, out = str(tiny_model("llama", tmp_path)), tmp_path / "small.gguf"
    words = [
        "distill-quantize",
        model,
        str(out),
        "q2_k",
        "--data",
        "text.txt",
        "--steps",
        "5",
        "--lr",
        "0.02",
        "--pure",
    ]
    result = cli(*words)
    assert result.exit_code == 0, result.stderr
    assert (given["options"].steps, given["options"].lr, given["pure"], given["data"]) == (
        5,
        0.02,
        True,
        Path("text.txt"),
    )
    assert result.stderr.splitlines()[-1] == "camshaft: learning Q2_K: 5 of 5 steps, KL 0.2500, held out 0.3000"
    assert result.stdout == f"{out}: 70.0 MB; KL divergence 0.4000 to 0.1000 nats a token (75% less), 12 s\n"
    assert json.loads(cli(*words, "--json").stdout)["kl_after"] == 0.1


def test_errors_are_one_line(cli: Any, tmp_path: Path) -> None:
    model = str(tiny_model("llama", tmp_path))
    for words, message in (
        (["Q9"], "Q9"),
        (["Q4_0", "--steps", "0"], "--steps"),
        (["Q4_0", "--data", str(tmp_path / "none")], "none: cannot be read"),
    ):
        data = [] if "--data" in words else ["--data", model]
        result = cli("distill-quantize", model, str(tmp_path / "out.gguf"), *words, *data)
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr.splitlines()[-1]
    assert not (tmp_path / "out.gguf").exists()

"""PEFT folders against transformers: W + scale B A in its model is what an adapter makes of the GGUF file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel, train
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.adapters.peft_names import NAMINGS, file_name, naming_of
from tests.support.fixtures import tiny_model

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
numpy_files = pytest.importorskip("safetensors.numpy")
from scripts.oracles import tiny_models  # noqa: E402 - imports torch
from scripts.oracles.tiny_models import SEEDED  # noqa: E402 - imports torch

Array = np.ndarray[Any, Any]
# transformers lacks these: their modules have the names of Llama's, or those of programs beside their files.
WITHOUT = {"deci", "smallthinker", "pangu-embedded", "nanbeige", "qwen", "codeshell"}
MODELS = {name: (seed, m) for name, (seed, m) in SEEDED.items() if m.arch in {*NAMINGS} - WITHOUT}
ALPHA, RANK = 3.0, 4


def changed(name: str, folder: Path) -> Any:
    """The model of transformers with an adapter of every known module in its weights; writes the adapter in PEFT's form."""
    seed, tiny = MODELS[name]
    network, naming, rng = tiny_models.build(tiny, seed), naming_of(tiny.arch), np.random.default_rng(seed)
    found = {}
    for module, layer in network.named_modules():
        if file_name(naming, module) is None or (tiny.tied and module == naming.head):
            continue
        n, k = layer.weight.shape[::-1] if naming.transposed else layer.weight.shape
        a, b = (rng.normal(0, 0.2, shape).astype(np.float32) for shape in ((RANK, k), (n, RANK)))
        change = torch.tensor(ALPHA / math.sqrt(RANK) * (b @ a))
        layer.weight.data += change.T if naming.transposed else change
        found |= {f"base_model.model.{module}.lora_{part}.weight": m for part, m in (("A", a), ("B", b))}
    assert found
    folder.mkdir()
    numpy_files.save_file(found, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "use_rslora": True, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    return network


def test_every_family_has_a_model() -> None:
    assert {m.arch for _, m in MODELS.values()} == set(NAMINGS) - WITHOUT


@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_the_changed_model(name: str, tmp_path: Path) -> None:
    network = changed(name, tmp_path / "peft")
    train.merge(tiny_model(name, tmp_path), tmp_path / "peft", tmp_path / "merged.gguf")
    with open_gguf(tmp_path / "merged.gguf") as file:
        for tensor, wanted in tiny_models.tensors(MODELS[name][1], network):
            np.testing.assert_allclose(file.tensors[tensor].dequantize(), wanted, atol=1e-6, err_msg=tensor)


@pytest.mark.parametrize("name", ["llama", "gptneox", "phi3", "kimi-linear", "afmoe"])
def test_logits_are_those_of_the_changed_model(name: str, tmp_path: Path) -> None:
    network = changed(name, tmp_path / "peft")
    tokens = tiny_models.sequence(1, n_vocab=MODELS[name][1].n_vocab)
    wanted = tiny_models.logits(network, tokens)
    base = tiny_model(name, tmp_path)
    with LanguageModel(base, adapters=[tmp_path / "peft"], activations="f32", threads=1, context=64, sessions=1) as lm:
        np.testing.assert_allclose(lm.logits(tokens), wanted, atol=2e-3)

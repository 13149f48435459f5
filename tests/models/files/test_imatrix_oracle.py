"""Importance matrices beside transformers' inputs of layers, and files made with one beside llama.cpp."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.measures.importance import importance_matrix
from camshaft.models.convert.tensor_names import new_name
from camshaft.models.files.quantize import quantize
from camshaft.text.tokenizer import Tokenizer
from tests.support.fixtures import excerpt, tiny_logits, tiny_model

pytestmark = pytest.mark.oracle
CHUNK = 64


@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma2", "phi3", "starcoder2", "mamba2", "lfm2"])
def test_sums_are_those_of_transformers_inputs(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from scripts.oracles import tiny_models

    seed, model = tiny_models.SEEDED[name]
    network = tiny_models.build(model, seed).double()
    sums: dict[str, np.ndarray] = {}

    def hook(weight: str):  # type: ignore[no-untyped-def]
        def add(module, inputs, output) -> None:  # type: ignore[no-untyped-def]
            sums[weight] = sums.get(weight, 0) + inputs[0][0].square().sum(axis=0).numpy()

        return add

    for module_name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and "layers" in module_name:
            found = new_name(f"{module_name}.weight", model.arch)
            assert found is not None
            module.register_forward_hook(hook(found.name + found.ending))
    path = tiny_model(name, tmp_path)
    with open_gguf(path) as file:
        ids = Tokenizer.from_gguf(file.metadata).encode(excerpt())
    with torch.no_grad():
        for i in range(2):
            network(torch.tensor([ids[i * CHUNK : (i + 1) * CHUNK]]))
    ours = importance_matrix(path, excerpt(), chunk=CHUNK, chunks=2, threads=1)
    assert {*ours.sums} == {*sums}
    for weight, wanted in sums.items():
        np.testing.assert_allclose(ours.sums[weight][0], wanted, rtol=1e-4, err_msg=weight)


@pytest.mark.parametrize("file_type", ["Q4_0", "Q5_1", "IQ4_NL"])
def test_llama_cpp_reads_what_was_quantized_with_a_matrix(file_type: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from scripts.oracles import llama

    path, (tokens, _) = tiny_model("llama", tmp_path), tiny_logits("llama")
    matrix = importance_matrix(path, excerpt(), chunk=CHUNK, chunks=2, threads=1)
    quantize(path, tmp_path / "out.gguf", file_type, importance=matrix, tensor_types=[("attn_v", "Q8_0")])
    theirs = llama.logits(tmp_path / "out.gguf", tokens, exact=True)
    with LanguageModel(tmp_path / "out.gguf", activations="f32", threads=1, context=64, sessions=1) as lm:
        ours = np.asarray(lm.logits(tokens))
    assert np.corrcoef(ours.reshape(-1), theirs.reshape(-1))[0, 1] > 0.999  # its activations have 8 bits

"""Models that transformers saves, converted: the frozen files' keys and tensors, and transformers' logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.convert.convert import convert
from tests.models.convert.test_convert import same_keys
from tests.support.fixtures import TINY_MODELS, tiny_logits, tiny_model

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_saved_model_gives_transformers_logits(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from scripts.oracles import tiny_models, tiny_recurrent
    from scripts.oracles.tiny_vocabulary import write_tokenizer

    seed, model = tiny_recurrent.SEEDED[name]
    network = tiny_models.build(model, seed)
    network.save_pretrained(tmp_path / "hub")
    with open_gguf(tiny_model(name, tmp_path)) as frozen:
        write_tokenizer(tmp_path / "hub", str(frozen.metadata["tokenizer.ggml.pre"]))
        convert(tmp_path / "hub", tmp_path / "out.gguf", "F32")
        with open_gguf(tmp_path / "out.gguf") as file:
            same_keys(file, frozen)
            assert {*file.tensors} == {*frozen.tensors}
            for key, tensor in frozen.tensors.items():
                np.testing.assert_allclose(file.tensors[key].dequantize(), tensor.dequantize(), rtol=1e-6, err_msg=key)
    tokens, wanted = tiny_logits(name)
    with LanguageModel(tmp_path / "out.gguf", activations="f32", threads=1, context=128, sessions=1) as lm:
        np.testing.assert_allclose(lm.logits(tokens), wanted, atol=1e-3)

"""Models that transformers saves, converted: the frozen files' keys and tensors, and transformers' logits."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel, TextToTextModel
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.convert.architectures import ARCHITECTURES
from camshaft.models.convert.convert import convert
from tests.models.convert.test_convert import same_keys
from tests.models.convert.test_mmproj import write_preprocessor
from tests.support.fixtures import DATA, TINY_MODELS, tiny_encoder, tiny_logits, tiny_model
from tests.support.models import images

pytestmark = pytest.mark.oracle
T5_OTHERS = ("general.name", "t5.context_length")


@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_saved_model_gives_transformers_logits(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from scripts.oracles import tiny_models
    from scripts.oracles.tiny.vocabulary import write_tokenizer

    seed, model = tiny_models.SEEDED[name]
    network = tiny_models.build(model, seed)
    if model.row or type(network).__name__ not in ARCHITECTURES:
        pytest.skip("camshaft convert has no row for it")
    network.save_pretrained(tmp_path / "hub")
    with open_gguf(tiny_model(name, tmp_path)) as frozen:
        write_tokenizer(tmp_path / "hub", str(frozen.metadata["tokenizer.ggml.pre"]), model.n_vocab)
        convert(tmp_path / "hub", tmp_path / "out.gguf", "F32")
        with open_gguf(tmp_path / "out.gguf") as file:
            same_keys(file, frozen)
            assert {*file.tensors} == {*frozen.tensors}
            for key, tensor in frozen.tensors.items():
                np.testing.assert_allclose(file.tensors[key].dequantize(), tensor.dequantize(), rtol=1e-6, err_msg=key)
    tokens, wanted = tiny_logits(name)
    with LanguageModel(tmp_path / "out.gguf", activations="f32", threads=1, context=128, sessions=1) as lm:
        np.testing.assert_allclose(lm.logits(tokens), wanted, atol=1e-3)


@pytest.mark.parametrize("name", ["qwen2vl", "qwen3vlmoe", "gemma4v-layers", "lfm2vl"])
def test_the_text_part_of_a_model_that_sees_images_becomes_the_frozen_file(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from scripts.oracles.tiny.images import vision as tiny_vision
    from scripts.oracles.tiny.images.models import FIRST_SEED, MODELS
    from scripts.oracles.tiny.vocabulary import write_tokenizer

    seed, model = next((i, m) for i, m in enumerate(MODELS, FIRST_SEED) if m.name == name)
    tiny_vision.build(model, seed).save_pretrained(tmp_path / "hub")
    with open_gguf(images.tiny_vision(name, tmp_path)[0]) as frozen:
        pre = str(frozen.metadata["tokenizer.ggml.pre"])
        write_tokenizer(tmp_path / "hub", pre, model.text.n_vocab, model.more)
        convert(tmp_path / "hub", tmp_path / "out.gguf", "F32")
        with open_gguf(tmp_path / "out.gguf") as file:
            same_keys(file, frozen)
            assert {*file.tensors} == {*frozen.tensors}
            for key, tensor in frozen.tensors.items():
                np.testing.assert_array_equal(file.tensors[key].dequantize(), tensor.dequantize(), err_msg=key)


ENCODERS = ("bert", "nomic-bert", "bert-rerank", "xlm-r-rerank", "modern-bert", "modern-bert-rerank", "jina-bert-v3")


@pytest.mark.parametrize("name", ENCODERS)
def test_a_saved_encoder_becomes_the_frozen_file(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("llama_cpp")
    from scripts.oracles.encoders import tiny as tiny_encoders
    from tests.support.models.hub_folders import write_encoder_tokenizer

    seed, model = next((i, m) for i, m in enumerate(tiny_encoders.ENCODERS) if m.name == name)
    network = tiny_encoders.build(model, seed)
    network.save_pretrained(tmp_path / "hub")
    with open_gguf(tiny_encoder(name, tmp_path)) as frozen:
        write_encoder_tokenizer(tmp_path / "hub", frozen, model.pooling)
        convert(tmp_path / "hub", tmp_path / "out.gguf", "F32")
        with open_gguf(tmp_path / "out.gguf") as file:
            # Which unigrams are unused is only in SentencePiece's file.
            same_keys(file, frozen, ("general.name", "tokenizer.ggml.token_type")[: 1 + (model.tokenizer == "t5")])
            assert {*file.tensors} == {*frozen.tensors}
            for key, tensor in frozen.tensors.items():
                np.testing.assert_array_equal(file.tensors[key].dequantize(), tensor.dequantize(), err_msg=key)


MMPROJ = ("idefics3", "gemma3", "qwen2vl", "qwen2.5vl", "qwen3vl", "qwen3vlmoe", "lfm2vl", "pixtral")


@pytest.mark.parametrize("name", MMPROJ)
def test_the_encoder_of_a_saved_model_becomes_the_frozen_file_which_llama_cpp_opens(name: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    llama, mtmd = (pytest.importorskip(f"llama_cpp{part}") for part in ("", ".mtmd_cpp"))
    from scripts.oracles.tiny.images import vision as tiny_vision
    from scripts.oracles.tiny.images.models import FIRST_SEED, MODELS
    from scripts.oracles.tiny.vocabulary import write_tokenizer

    seed, model = next((i, m) for i, m in enumerate(MODELS, FIRST_SEED) if m.name == name)
    hub, text, mmproj = tmp_path / "hub", *images.tiny_vision(name, tmp_path)
    tiny_vision.build(model, seed).save_pretrained(hub)
    write_preprocessor(hub, model.projector)
    with open_gguf(text) as file:
        write_tokenizer(hub, str(file.metadata["tokenizer.ggml.pre"]), model.text.n_vocab, model.more)
    assert convert(hub, tmp_path / "f32.gguf", "F32", mmproj=True).architecture == f"clip ({model.projector})"
    with open_gguf(mmproj) as frozen, open_gguf(tmp_path / "f32.gguf") as file:
        for key in frozen.metadata:
            np.testing.assert_array_equal(file.metadata[key], frozen.metadata[key], err_msg=key)
        assert {*file.tensors} - {"v.token_embd.img_break"} == {*frozen.tensors}
        for key, tensor in frozen.tensors.items():
            np.testing.assert_array_equal(file.tensors[key].dequantize(), tensor.dequantize(), err_msg=key)
    convert(hub, tmp_path / "f16.gguf", "F16", mmproj=True)
    llama.llama_backend_init()
    loaded = llama.llama_model_load_from_file(str(text).encode(), llama.llama_model_default_params())
    options = mtmd.mtmd_context_params_default()
    options.use_gpu, options.warmup, options.n_threads = False, False, 1
    opened = mtmd.mtmd_init_from_file(str(tmp_path / "f16.gguf").encode(), loaded, options)
    assert opened
    mtmd.mtmd_free(opened)
    llama.llama_model_free(loaded)


@pytest.mark.parametrize("version", ["gated", "relu"])
def test_a_saved_t5_becomes_the_frozen_file(version: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    from scripts.oracles.tiny import t5 as tiny_t5

    network, hub = tiny_t5.make(gated=version == "gated"), tmp_path / "hub"
    network.save_pretrained(hub)
    (tmp_path / "t5.gguf").write_bytes(lzma.decompress((DATA / "t5" / f"t5-{version}.gguf.xz").read_bytes()))
    with open_gguf(tmp_path / "t5.gguf") as frozen:
        names, scores = (frozen.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "scores"))
        pieces = list(zip(map(str, names), map(float, scores), strict=True))
        made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 2))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
        made.add_special_tokens(["<pad>", "</s>", "<unk>"])
        made.save(str(hub / "tokenizer.json"))
        tokens = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
        (hub / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", **tokens}))
        result = convert(hub, tmp_path / "out.gguf", "F32")
        assert result.architecture == "t5"
        with open_gguf(tmp_path / "out.gguf") as file:
            same_keys(file, frozen, T5_OTHERS)
            assert {*file.tensors} == {*frozen.tensors}
            for key, tensor in frozen.tensors.items():
                np.testing.assert_array_equal(file.tensors[key].dequantize(), tensor.dequantize(), err_msg=key)
    with TextToTextModel(tmp_path / "out.gguf", threads=1, activations="f32") as model:
        assert model.generate("the cat sat", max_tokens=4).tokens >= 0

"""Which models round alike in runs of all sizes, so that several sequences generate in one run."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import pytest

from camshaft import GenerateOptions, LanguageModel, Sampling
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.tensor import FileTensor
from camshaft.generate.engine.engine import Engine
from camshaft.models.file_tensors import is_multiplied
from camshaft.models.files.quantize import quantize
from camshaft.ops.quantized.samples import random_blocks
from tests.generate.engine.requests import PROMPTS, Told, answer, finish, options
from tests.support.fixtures import tiny_model
from tests.support.models.files import changed_model, require_default_model
from tests.support.quick import quick_of


def _tensor(name: str, shape: tuple[int, ...], form: str) -> FileTensor:
    return FileTensor(name, shape, BLOCK_FORMATS[form], 0, lambda: pytest.fail("its bytes are not asked for"), "")


def test_matrices_that_no_product_reads_are_none_of_products() -> None:
    for name in (
        *("position_embd.weight", "token_types.weight", "blk.0.shortconv.conv.weight", "blk.1.ssm_conv1d.weight"),
        *("blk.0.ssm_a", "blk.0.ssm_norm.weight", "blk.0.attn_q_norm.weight"),
    ):
        assert not is_multiplied(_tensor(name, (4, 8), "F32"))
    for name in ("blk.0.ffn_gate_inp.weight", "blk.0.attn_kv_b.weight", "token_embd.weight", "adapter.lora_a"):
        assert is_multiplied(_tensor(name, (4, 32), "F16"))
        assert not is_multiplied(_tensor(name, (4, 32), "Q8_0"))
        assert not is_multiplied(_tensor(name, (32,), "F32"))


def _check_bits_beside(path: Path, n: int) -> None:
    """That n sequences generate in one run, with the bits of each alone."""
    with LanguageModel(path, threads=1, context=32, sessions=n) as lm:
        plans, cache = lm.plans, lm.plans.cache
        slots = [cache.open_slot() for _ in range(n)]

        def begun() -> None:
            for slot in slots:
                cache.reserve(slot, 6)
                for state in cache.state_names:
                    cache.states[state][slot] = 0
                plans.run([40 + slot, 41, 42], range(3), [slot] * 3, (), alike=True)

        begun()
        alone = [plans.run([50], [3], [slot], (0,)).copy() for slot in slots]
        for size in {2, 3, n // 2 + 1, n} if n > 4 else {n}:
            begun()
            before = plans.n_runs
            plans.run_decode([50] * size, [3] * size, slots[:size])
            assert plans.n_runs == before + 1
            np.testing.assert_array_equal(np.asarray(plans.logits)[:size], np.concatenate(alone[:size]))
        for slot in slots:
            cache.close_slot(slot)


@pytest.mark.full
@pytest.mark.parametrize("name", ["gpt2", "lfm2", "mamba2", "qwen3moe"])
def test_quantized_models_with_filters_positions_or_routers_generate_in_one_run(name: str, tmp_path: Path) -> None:
    """Routers are F32."""
    quantize(tiny_model(name, tmp_path), tmp_path / "quantized.gguf", "Q8_0")
    _check_bits_beside(tmp_path / "quantized.gguf", 3)


@pytest.mark.full
@pytest.mark.parametrize("name", ["qwen3moe", "qwen2moe", "gpt-oss", "deepseek2-lite"])
def test_sixteen_sequences_of_experts_generate_in_one_run(name: str, tmp_path: Path) -> None:
    quantize(tiny_model(name, tmp_path), tmp_path / "quantized.gguf", "Q4_0")
    _check_bits_beside(tmp_path / "quantized.gguf", 16)


@pytest.mark.full
@pytest.mark.parametrize("name", ["llama", "mixtral", "gemma2", "cohere2", "rwkv7", "qwen35moe"])
def test_models_of_floats_generate_in_one_run(name: str, tmp_path: Path) -> None:
    """Gemma 2 caps scores and Cohere 2 has windows: attention with options has its own kernels."""
    _check_bits_beside(tiny_model(name, tmp_path), 16)


@pytest.mark.full
def test_prompts_of_f32_activations_have_the_bits_of_each_alone(tmp_path: Path) -> None:
    """Products of f32 activations with many rows have another kernel than those with one, and so have logits."""
    quantize(tiny_model("llama", tmp_path), tmp_path / "quantized.gguf", "Q8_0")
    _check_prompts_beside(tmp_path / "quantized.gguf", context=32, activations="f32")


@pytest.mark.full
def test_prompts_of_a_large_model_have_the_bits_of_each_alone() -> None:
    """Its products are large enough for the kernels that are chosen by the number of rows."""
    _check_prompts_beside(require_default_model(), context=128, activations="auto")


def _check_prompts_beside(path: Path, **options: Any) -> None:
    """That the logits of prompts are those that each has alone, to the bit, where several end in one run."""
    with LanguageModel(path, threads=1, sessions=3, **options) as lm:
        plans, cache = lm.plans, lm.plans.cache
        slots = [cache.open_slot() for _ in range(3)]
        for slot in slots:
            cache.reserve(slot, 6)
        prompts = [[40 + slot, 41, 42] for slot in slots]
        alone = [
            plans.run(ids, range(3), [slot] * 3, (2,), alike=True).copy()
            for ids, slot in zip(prompts, slots, strict=True)
        ]
        ids, owners = [i for each in prompts for i in each], [slot for slot in slots for _ in range(3)]
        together = plans.run(ids, [*range(3)] * 3, owners, (2, 5, 8), alike=True)
        np.testing.assert_array_equal(together, np.concatenate(alone))
        for slot in slots:
            cache.close_slot(slot)


def _with_wide_blocks(name: str, tmp_path: Path) -> Path:
    """The tiny Llama in Q8_0 with random blocks of 256 in its feed-forward part, which is as wide."""
    ffn, q8_0, kind = 256, gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType[name]
    weights = {t.name: np.array(t.data) for t in gguf.GGUFReader(tiny_model("llama", tmp_path)).tensors}
    dim, rng = weights["blk.0.ffn_gate.weight"].shape[1], np.random.default_rng(1)
    for i, part in product((0, 1), ("gate", "up")):
        weights[f"blk.{i}.ffn_{part}.weight"] = rng.normal(size=(ffn, dim)).astype(np.float32) / 8
    down = {f"blk.{i}.ffn_down.weight": (random_blocks(name, dim, ffn, seed=i).reshape(dim, -1), kind) for i in (0, 1)}
    packed = {n: (gguf.quants.quantize(w, q8_0), q8_0) for n, w in weights.items() if w.ndim == 2 and n not in down}
    keys = {"llama.context_length": 200, "llama.feed_forward_length": ffn}
    return changed_model("llama", tmp_path, keys=keys, tensors=packed | down)


@pytest.mark.parametrize("name", quick_of(("Q8_0", "IQ1_S", "IQ2_XS", "Q4_K"), ["Q4_K"]))
@pytest.mark.full
def test_prompts_of_quantized_models_are_read_alike_alone_in_parts_and_beside_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where prompts are read by bf16, or by scales in another order, runs of a single token of a prompt too, and what generates
    has codes of 8 bits."""
    monkeypatch.setattr("camshaft.generate.model_plans.PROMPT_TOKENS", 80)
    if name == "Q8_0":
        made = changed_model("llama", tmp_path, keys={"llama.context_length": 200})
        quantize(made, tmp_path / "quantized.gguf", name)
    else:
        _with_wide_blocks(name, tmp_path).rename(tmp_path / "quantized.gguf")
    how = GenerateOptions(max_tokens=4, sampling=Sampling(greedy=True), ignore_eos=True, logprobs=1)
    tokens = np.random.default_rng(0).integers(30, 200, 170).tolist()
    prompts = [tokens[:n] for n in (1, 2, 81, 100, 161, 170)]
    with LanguageModel(tmp_path / "quantized.gguf", threads=1, context=200, sessions=8) as lm:
        lone = [lm.generate(prompt, how) for prompt in prompts]
        for each in lone:
            list(each)
        with Engine(lm) as engine:
            told = [Told() for _ in prompts]
            for prompt, each_told in zip(prompts, told, strict=True):
                engine.submit(prompt, how, each_told)
            finish(engine)
        found = [[token for update in each.updates for token in update.logprobs] for each in told]
        assert found == [list(each.logprobs) for each in lone]
        for keeps in (False, True):
            kept = lm.generate(prompts[-1], how, prompt_cache=str(tmp_path / "kept"))
            list(kept)
            assert (kept.kept is not None and kept.kept.n_taken > 0) == keeps
            assert kept.logprobs == lone[-1].logprobs


@pytest.mark.full
def test_sixteen_neighbours_change_no_token_of_a_model_with_experts(tmp_path: Path) -> None:
    quantize(tiny_model("qwen3moe", tmp_path), tmp_path / "quantized.gguf", "Q4_0")
    with LanguageModel(tmp_path / "quantized.gguf", context=48, sessions=17) as lm, Engine(lm) as engine:
        how = [options(3 + i % 4, seed=i, greedy=i % 3 == 0) for i in range(17)]
        prompts = [[40 + i, *PROMPTS[i % len(PROMPTS)]] for i in range(17)]
        lone = []
        for prompt, each in zip(prompts, how, strict=True):
            request = engine.submit(prompt, each, Told())
            finish(engine)
            lone.append(answer(request))
        runs = lm.plans.n_runs
        requests = [engine.submit(prompt, each, Told()) for prompt, each in zip(prompts, how, strict=True)]
        finish(engine)
        assert list(map(answer, requests)) == lone
        assert lm.plans.n_runs - runs < sum(map(len, map(answer, requests))) / 3

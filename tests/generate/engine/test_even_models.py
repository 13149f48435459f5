"""Which models round alike in runs of all sizes, so that several sequences generate in one run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.tensor import FileTensor
from camshaft.models.converted import is_multiplied
from camshaft.models.files.quantize import quantize
from tests.support.fixtures import tiny_model
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


@pytest.mark.parametrize("name", quick_of(("gpt2", "lfm2", "mamba2"), ("mamba2",)))
def test_quantized_models_with_filters_or_positions_generate_in_one_run(name: str, tmp_path: Path) -> None:
    quantize(tiny_model(name, tmp_path), tmp_path / "quantized.gguf", "Q8_0")
    with LanguageModel(tmp_path / "quantized.gguf", threads=1, context=32, sessions=3) as lm:
        plans, cache = lm.plans, lm.plans.cache
        slots = [cache.open_slot() for _ in range(3)]

        def begun() -> None:
            for slot in slots:
                cache.reserve(slot, 6)
                for state in cache.state_names:
                    cache.states[state][slot] = 0
                plans.run([40 + slot, 41, 42], range(3), [slot] * 3, (), alike=True)

        begun()
        alone = [plans.run([50], [3], [slot], (0,)).copy() for slot in slots]
        begun()
        before = plans.n_runs
        plans.run_decode([50] * 3, [3] * 3, slots, alike=True)
        assert plans.n_runs == before + 1
        np.testing.assert_array_equal(np.asarray(plans.logits)[:3], np.concatenate(alone))
        for slot in slots:
            cache.close_slot(slot)

"""Plans of models: which weights they share, how many thunks and waits a token takes, and what few tokens cost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from camshaft.generate.language_model import LanguageModel
from camshaft.plan.buffers import Lifetime
from tests.support.fixtures import tiny_model
from tests.support.models.files import require_default_model

pytestmark = pytest.mark.usefixtures("thunk_per_op")


def _weights(lm: LanguageModel) -> tuple[set[int], Counter[str]]:
    """The addresses of the weights that both plans read, and in how many plans each name occurs."""
    addresses, names = set[int](), Counter[str]()
    for plan in (lm.plans.prompt, lm.plans.single):
        for buffer in plan.bound.schedule.buffers:
            if buffer.lifetime is Lifetime.CONSTANT and buffer.name.endswith((".weight", ".bias")):
                addresses.add(plan.bound.bytes_of(buffer.slice()).ctypes.data)
                names[buffer.name] += 1
    return addresses, names


def test_embedding_and_logits_share_one_weight_and_so_do_both_plans(tmp_path: Path) -> None:
    with LanguageModel(tiny_model("llama-tied", tmp_path), threads=1, context=64) as lm:
        addresses, names = _weights(lm)
        assert set(names) == set(lm._file.tensors)
        assert set(names.values()) == {2}
        assert len(addresses) == len(names)


def test_the_default_model_packs_each_weight_once_and_quantizes_each_activation_once() -> None:
    with LanguageModel(require_default_model(), threads=2, context=64) as lm:
        addresses, names = _weights(lm)
        assert set(names) == set(lm._file.tensors)
        assert set(names.values()) == {2}
        assert len(addresses) == len(names)
        file_nbytes = sum(t.nbytes for t in lm._file.tensors.values())
        assert file_nbytes * 0.9 < lm.plans.weights.nbytes < file_nbytes * 1.3
        layers = lm.config.n_layers
        for plan in (lm.plans.prompt, lm.plans.single):
            counted = Counter(t.op for t in plan.bound.schedule.thunks)
            # A layer quantizes what q, k and v read, what attention gives, what gate and up read, and what they give.
            norms = Counter({"rms_norm_q8": 1, "residual_norm_q8": 2 * layers})
            assert counted & norms == norms
            assert counted["quantize_activations"] == layers
            # gate, up and silu: one thunk, or a node of three; which of them, tests/ops/quantized/test_gated_product.py says
            gated = Counter(t.variant for t in plan.bound.schedule.thunks if t.op == "gated_product")
            apart = sum(n for name, n in gated.items() if name.startswith("unfused_"))
            assert gated["tile"] + gated["int16_sums"] + gated["vnni_sums"] + apart / 3 == layers
            assert counted["quantized_matmul"] == 5 * layers + 1
            assert not counted.keys() & {"add", "rms_norm", "residual_norm", "silu_multiply", "silu_multiply_q8"}


def test_a_token_takes_few_thunks_and_waits() -> None:
    with LanguageModel(require_default_model(), threads=2, context=64) as lm:
        schedule, layers = lm.plans.single.bound.schedule, lm.config.n_layers
        # gate, up and silu: one thunk, or a node of three with a wait before silu; a CPU's features and costs decide
        fused = sum((t.op, t.variant) == ("gated_product", "tile") for t in schedule.thunks)
        # a wait before the norms, rope, attention, its merge, silu and ffn_down; at 64 positions a merge is every worker's
        expected = (16 * layers + 3 - 2 * fused, 7 * layers - fused)
        assert (len(schedule.thunks), sum(schedule.waits)) == expected


def test_seven_tokens_of_512_cost_seven_tokens_programs_in_a_model(tmp_path: Path) -> None:
    with LanguageModel(tiny_model("llama", tmp_path), threads=1, context=512) as lm:
        plans, thunks = lm.plans, lm.plans.prompt.bound.schedule.thunks
        with lm.session() as session:
            session.process([5] * 7)
        active = lm.plans.prompt.bound.active
        assert active == {plans.prompt_tokens: 7, plans.length: 7}
        for thunk in thunks:
            few, all_of_it = thunk.programs.count(active), thunk.programs.bound
            by_token = [divisor for _, divisor in thunk.programs.factors]
            if by_token:
                assert few * -(-512 // max(by_token)) <= all_of_it * -(-7 // max(by_token)), thunk.name
        assert sum(t.programs.count(active) for t in thunks) * 5 < sum(t.programs.bound for t in thunks)


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_past_its_attention_the_last_layer_is_of_the_wanted_row_alone(architecture: str, tmp_path: Path) -> None:
    with LanguageModel(tiny_model(architecture, tmp_path), threads=1, context=64) as lm:
        thunks, last = lm.plans.prompt.bound.schedule.thunks, lm.config.n_layers - 1
        names = [t.name for t in thunks]
        first = names.index(f"blk.{last}.attention_rows")
        assert names.index(f"blk.{last}.rows") > first
        assert all(thunk.programs.factors for thunk in thunks[:first])
        assert not any(thunk.programs.factors for thunk in thunks[first:])
        with lm.session() as session:
            alone = session.process([5, 9, 2, 7])
        np.testing.assert_allclose(alone, lm.logits([5, 9, 2, 7])[-1:], rtol=1e-5, atol=1e-5)

"""What a layer of each family costs in launches and waits, beside llama's: the fusions of llama's files hold for the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from camshaft import LanguageModel
from camshaft.models.files.quantize import quantize
from tests.support.fixtures import tiny_model
from tests.support.quick import quick_of

# Family -> launches and waits of a layer for a token, at most, and ops that its layers have. llama has 13: norm with
# quantization, q, k, v, two rotations, the cache, attention, its quantization, output, residual and norm with quantization,
# gated product, down.
MOST: dict[str, tuple[int, int, set[str]]] = {
    "llama": (13, 2, {"residual_norm_q8", "gated_product"}),
    "qwen3": (16, 2, {"residual_norm_q8", "gated_product"}),  # norms of q and k
    "gemma3": (18, 2, {"residual_norm_q8", "gated_product"}),  # and two after blocks
    "gemma2": (17, 3, {"residual_norm_q8", "gated_product"}),
    "qwen3moe": (20, 2, {"residual_norm_q8", "moe_route", "moe_weighted_reduce"}),
    "gpt-oss": (29, 2, {"residual_norm_q8", "moe_route", "moe_weighted_reduce"}),  # biases of all, one gather for each
    "lfm2": (15, 2, {"residual_norm_q8", "gated_product"}),
    "mamba2": (12, 2, {"residual_norm_q8"}),
    "qwen35": (20, 2, {"residual_norm_q8"}),
}
NAMES = quick_of(tuple(MOST), ("llama",))


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_has_few_launches_and_waits(name: str, tmp_path: Path) -> None:
    most, most_waits, wanted = MOST[name]
    quantize(tiny_model(name, tmp_path), tmp_path / "q8_0.gguf", "Q8_0")
    with LanguageModel(tmp_path / "q8_0.gguf", threads=2, context=96, sessions=2) as lm:
        schedule, n_layers = lm.plans.single.bound.schedule, lm.config.n_layers
    launches: list[set[str | int]] = [set() for _ in range(n_layers)]
    layer, waits = -1, [0] * n_layers
    for i, (thunk, wait) in enumerate(zip(schedule.thunks, schedule.waits, strict=True)):
        named = re.match(r"blk\.(\d+)\.", thunk.name)
        layer = max(layer, int(named[1])) if named else layer
        if layer >= 0 and not thunk.name.startswith("output"):
            launches[layer].add(thunk.name.partition("/")[0] if named else i)  # a launch and its merge count once
            waits[layer] += wait
    assert max(map(len, launches)) <= most
    assert max(waits) <= most_waits
    assert wanted <= {thunk.op for thunk in schedule.thunks}

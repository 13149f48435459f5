"""Grouped products: which weights they read, that sizes are run-time values, and equal bits for any variant and thread count."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import as_dtype
from camshaft.emit.target import LEVELS
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.graph.graph import ArraySource, Graph
from camshaft.graph.passes.rewrite import prepare
from camshaft.lang.interpreter.interpret import interpret
from camshaft.lang.interpreter.memory import Memory
from camshaft.ops.experts.samples import Case
from camshaft.ops.kernels.launch import for_workers, operand_spec, signature
from camshaft.ops.op import Build, Launch, NodeSpec, Op
from camshaft.ops.quantized import matmul
from camshaft.ops.quantized.products import gemv
from camshaft.ops.quantized.samples import random_blocks
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import run_variant
from tests.support.quick import quick_of

GROUPED = ops.get("quantized_matmul_grouped")
D, F, E = 64, 32, 6


def variant_of(op: Op, name: str) -> ops.op.KernelVariant:
    return next(v for v in op.variants if v.name == name)


def reads_of(case: Case, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[np.ndarray, Counter[int]]:
    """y, and how often each element of the packed codes is read, by its index, as the interpreter counts it."""
    node, target = NodeSpec(case.specs, GROUPED.infer(case.specs, {}), {}), cpu_device("simd")
    build = variant_of(GROUPED, name).build(node, target)
    assert isinstance(build, Build)
    memories: dict[tuple[str, int], np.ndarray] = {("input", i): a for i, a in enumerate(case.inputs())}
    for kind, specs in (("output", node.outputs), ("scratch", build.scratch)):
        memories |= {(kind, i): np.zeros(spec.nbytes, np.uint8) for i, spec in enumerate(specs)}
    seen: Counter[int] = Counter()
    note = Memory.note_read

    def noted(self: Memory, line: int, flat: Any, who: Any) -> Any:
        if "_codes_" in self.array.name:
            seen.update(np.atleast_1d(flat).tolist())
        return note(self, line, flat, who)

    monkeypatch.setattr(Memory, "note_read", noted)
    for launch in build.launches:
        assert isinstance(launch, Launch)
        form, arrays = signature(launch, node, build), []
        for operand, given in zip(launch.arrays, form.arrays, strict=True):
            part = operand_spec(operand, node, build).part(operand.part)
            raw = memories[operand.kind, operand.index].reshape(-1).view(np.uint8)[part.offset_nbytes :][: part.nbytes]
            arrays.append(raw.view(given.dtype.numpy).reshape(given.bounds))
        traced = launch.kernel.trace(form.arrays, form.scalar_names, launch.constants, form.grid)
        interpret(traced, arrays, lanes=16)
    return memories["output", 0].view(np.float32).reshape(node.outputs[0].bounds), seen


def test_one_token_reads_only_its_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("Q4_0", 1, 1, 2, (8, 32, 64), False, False)
    y, seen = reads_of(case, "pairs", monkeypatch)
    per_expert = 32 * 64 // 8  # words of eight codes
    assert sum(seen.values()) * 4 == 2 * 32 * 64 // 2  # bytes of 4-bit codes of two experts
    assert {index // per_expert for index in seen} == set(case.experts.reshape(-1).tolist())
    np.testing.assert_allclose(y, case.wanted(), rtol=1e-4, atol=1e-4)


def test_many_tokens_read_each_expert_once(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("Q4_0", 6, 6, 2, (3, 32, 64), False, False)  # at most five pairs an expert, which are one tile
    y, seen = reads_of(case, "sorted", monkeypatch)
    assert set(seen.values()) == {1}
    assert len(seen) == 3 * 32 * 64 // 8
    np.testing.assert_allclose(y, case.wanted(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("quantized", [True, False])
def test_sorted_pairs_have_the_bits_of_single_ones(quantized: bool) -> None:
    case, device = Case("Q4_1", 29, 29, 2, (3, 32, 64), quantized, False), cpu_device("simd")
    node, given = NodeSpec(case.specs, GROUPED.infer(case.specs, {}), {}), case.inputs()
    one = run_variant(variant_of(GROUPED, "pairs"), node, device, given)[0]
    np.testing.assert_array_equal(run_variant(variant_of(GROUPED, "sorted"), node, device, given)[0], one)
    assert not one[1, 0].any()  # experts out of range give zeros
    assert not one[2, -1].any()


HAS_STREAMS = gemv.has_streams(cpu_device("simd"))
ZEN = replace(cpu_device("simd"), lanes=16, features=LEVELS["avx512-vnni"].features, architecture="x86_64")
# Two and four streams, by one block, two, and whole super-blocks of floats and of whole numbers.
STREAMED = [("Q8_0", 64, False), ("Q4_K", 512, False), ("Q4_K", 256, True), ("Q5_0", 64, False), ("Q6_K", 256, False)]


@pytest.mark.skipif(not HAS_STREAMS, reason="streams are for vectors of 16 numbers and for AVX2 without VNNI")
@pytest.mark.parametrize(("name", "k", "by_slot"), quick_of(STREAMED, STREAMED[:3]))
def test_slots_at_once_have_the_bits_of_single_ones(name: str, k: int, by_slot: bool) -> None:
    case, device = Case(name, 3, 3, 4, (6, 32, k), True, by_slot), cpu_device("simd")
    node, given = NodeSpec(case.specs, GROUPED.infer(case.specs, {}), {}), case.inputs()
    streams = variant_of(GROUPED, "streams")
    assert streams.supports(node, device) is None
    found, one = (run_variant(v, node, device, given)[0] for v in (streams, variant_of(GROUPED, "pairs")))
    np.testing.assert_array_equal(found, one)
    assert not one[1, 0].any()


@pytest.mark.parametrize(
    ("name", "by_slot", "workers", "chosen"),
    [
        ("Q4_K", False, 1, "streams"), ("Q4_K", True, 1, "streams"), ("Q6_K", False, 1, "streams"),
        ("Q6_K", True, 1, "pairs"), ("Q4_1", False, 1, "pairs"), ("Q4_K", False, 2, "pairs"),
    ],
)  # fmt: skip
def test_one_worker_reads_several_experts_at_once_where_that_is_faster(
    name: str, by_slot: bool, workers: int, chosen: str
) -> None:
    specs = Case(name, 1, 1, 8, (16, 256, 512), True, by_slot).specs
    node = NodeSpec(specs, GROUPED.infer(specs, {}), {})
    with for_workers(workers):
        fits = (v for v in GROUPED.variants if v.supports(node, ZEN) is None)
        assert min(fits, key=lambda v: v.cost(node, ZEN)).name == chosen


@pytest.mark.parametrize(("name", "tokens", "ahead"), [("Q8_0", 1, 0), ("Q8_0", 2, 128), ("Q4_0", 1, 128)])
def test_one_token_of_bytes_prefetches_nothing(name: str, tokens: int, ahead: int) -> None:
    specs = Case(name, tokens, tokens, 2, (3, 32, 64), True, False).specs
    node = NodeSpec(specs, GROUPED.infer(specs, {}), {})
    assert matmul.ahead_of(node, ZEN, tokens) == ahead


def block(tokens: int | cs.Extent, names: str = "Q4_0 Q8_0 Q4_0") -> tuple[Graph, list[np.ndarray]]:
    """A block of experts, and its stacks as numbers."""
    graph, stacks, numbers = Graph(), [], []
    for i, (name, size) in enumerate(zip(names.split(), ((F, D), (F, D), (D, F)), strict=True)):
        form, shape = BLOCK_FORMATS[name], (E, *size)
        raw = random_blocks(name, E * size[0], size[1], seed=i)
        stacks.append(graph.constant(f"w{i}", ArraySource(raw), TensorSpec(shape, form)))
        numbers.append(form.dequantize(raw.reshape(-1, form.block_nbytes)).reshape(shape))
    x, logits = graph.input("x", (tokens, D), "f32"), graph.input("logits", (tokens, E), "f32")
    weights, experts = cs.moe_softmax_topk(logits, top_k=2)
    gate, up, down = stacks
    graph.output("y", cs.moe_experts(x, gate, up, down, experts, weights))
    return graph, numbers


def test_a_block_takes_any_number_of_tokens_and_threads() -> None:
    bound, results = 20, []
    graph, numbers = block(cs.Extent("tokens", bound))
    rng = np.random.default_rng(2)
    x, logits = (rng.normal(size=(bound, n)).astype(np.float32) for n in (D, E))
    for threads in (1, 3):
        with cs.compile(graph, threads=threads, activations="f32") as plan:
            results.append({n: plan.run(x=x[:n], logits=logits[:n])["y"].copy() for n in (bound, 1, 7)})
    for n, y in results[0].items():
        np.testing.assert_array_equal(y, results[1][n])
        np.testing.assert_array_equal(y, results[0][bound][:n])
    weights, experts = ops.get("moe_softmax_topk").reference((logits,), {"top_k": 2})
    (wanted,) = ops.get("moe_experts").reference((x, *numbers, experts, weights), {})
    np.testing.assert_allclose(results[0][bound], wanted, rtol=1e-3, atol=1e-3)


def test_activations_are_quantized_once_and_with_the_activation() -> None:
    graph = prepare(block(4, "Q4_0 Q4_0 Q4_0")[0], "q8")
    names = [node.op.name for node in graph.nodes]
    product = "quantized_matmul_grouped"
    assert names == [
        "moe_softmax_topk", "quantize_activations", product, product, "silu_multiply_q8", product, "moe_weighted_reduce",
    ]  # fmt: skip


def test_eager_calls_of_plain_stacks() -> None:
    rng = np.random.default_rng(3)
    x, gate, up, down = (rng.normal(size=s).astype(np.float32) / 4 for s in ((5, 8), (4, 9, 8), (4, 9, 8), (4, 8, 9)))
    weights, experts = cs.moe_softmax_topk(rng.normal(size=(5, 4)).astype(np.float32), top_k=2)
    y = cs.moe_experts(x, gate, up, down, experts, weights)
    (wanted,) = ops.get("moe_experts").reference((x, gate, up, down, experts, weights), {})
    assert as_dtype(y.dtype).name == "f32"
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)

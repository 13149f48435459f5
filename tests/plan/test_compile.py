"""camshaft.compile: what a plan runs and how often, where its memory lies, what it refuses and what it tells."""

from __future__ import annotations

import errno
import mmap
import re
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from plan_kernels import align

import camshaft as cs
from camshaft.errors import BackendError, CamshaftError, PlanError, ShapeError
from camshaft.generate.language_model import LanguageModel
from camshaft.ops.spec import TensorSpec
from camshaft.plan.buffers import Lifetime
from camshaft.plan.memory.weights import Weights
from tests.support.fixtures import tiny_model
from tests.support.models.files import require_default_model

pytestmark = pytest.mark.usefixtures("thunk_per_op")

DIM = 48
TOKENS = cs.Extent("tokens", 512)
RNG = np.random.default_rng(3)
W = RNG.normal(size=DIM).astype(np.float32)
M = RNG.normal(size=(DIM, DIM)).astype(np.float32)
X = RNG.normal(size=(TOKENS.bound, DIM)).astype(np.float32)


def block() -> cs.Graph:
    """x -> norm -> product -> silu -> + x, over up to 512 tokens; outputs y and, a view of it, heads."""
    graph = cs.Graph()
    x = graph.input("x", (TOKENS, DIM), "f32")
    h = cs.rms_norm(x, W, eps=1e-5)
    flat = graph.reshape(graph.reshape(h, (TOKENS, 4, DIM // 4)), (TOKENS, DIM))
    y = cs.add(cs.silu(cs.matmul(flat, M, transpose_b=True)), x)
    graph.output("y", y)
    graph.output("heads", graph.reshape(y, (TOKENS, 4, DIM // 4)))
    return graph


def wanted(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    h = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * W @ M.T.astype(np.float64)
    return h / (1 + np.exp(-h)) + x


@pytest.mark.parametrize("threads", [1, 2])
def test_an_extent_costs_what_is_active_and_gives_what_is_right(threads: int) -> None:
    with cs.compile(block(), threads=threads) as plan:
        thunks = plan.bound.schedule.thunks
        for n in (7, 512, 1, 33, 0, 512):
            results = plan.run(x=X[:n], view=True)
            assert results["y"].shape == (n, DIM)
            assert results["heads"].shape == (n, 4, DIM // 4)
            np.testing.assert_allclose(results["y"], wanted(X[:n]), atol=1e-4)
            assert np.shares_memory(results["heads"], results["y"]) or n == 0
        few, many = ([t.programs.count({TOKENS: n}) for t in thunks] for n in (7, 512))
        assert sum(few) * 8 < sum(many), "7 tokens of 512 run a fraction of the programs"
        by_row = [(a, b) for a, b, t in zip(few, many, thunks, strict=True) if t.op == "rms_norm"]
        assert by_row == [(7, 512)]


def test_rows_beyond_the_active_extent_stay_as_they_were() -> None:
    with cs.compile(block(), threads=1) as plan:
        plan.outputs["y"][:] = 7
        plan.run(x=X[:5])
        assert (plan.outputs["y"][5:] == 7).all()
        assert (plan.outputs["y"][:5] != 7).any()


def test_views_make_no_thunk() -> None:
    with cs.compile(block(), threads=1) as plan:
        ops = [t.op for t in plan.bound.schedule.thunks]
        assert [op for op, before in zip(ops, ["", *ops], strict=False) if op != before] == [
            "rms_norm",
            "matmul",
            "silu",
            "add",
        ]


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_run_gives_the_same_bytes_for_any_number_of_threads(threads: int) -> None:
    with cs.compile(block(), threads=1) as one, cs.compile(block(), threads=threads) as plan:
        first = one.run(x=X[:100])["y"].tobytes()
        assert [plan.run(x=X[:100])["y"].tobytes() for _ in range(3)] == [first] * 3


@pytest.mark.parametrize("backend", ["scalar", "blas"])
def test_backends_agree(backend: str) -> None:
    if backend == "blas":
        pytest.importorskip("scipy_openblas32", reason="the extra blas is not installed")
    with cs.compile(block(), backend="simd", threads=1) as simd, cs.compile(block(), backend=backend) as other:
        assert {c.backend for c in simd.choices} == {"simd"}
        by_op = {c.op.name: c.backend for c in other.choices}
        assert by_op["matmul"] == backend
        assert by_op["silu"] == ("scalar" if backend == "scalar" else "simd")
        np.testing.assert_allclose(simd.run(x=X[:33])["y"], other.run(x=X[:33])["y"], atol=1e-5)


def test_an_override_holds_for_plans_made_under_it() -> None:
    with cs.backend("scalar"):
        plan = cs.compile(block(), threads=1)
    assert {c.backend for c in plan.choices} == {"scalar"}
    plan.close()
    for name in ("abacus", "cuda"):
        with pytest.raises(BackendError, match=name):
            cs.compile(block(), backend=name)


def test_the_callers_memory_is_used_for_what_it_names_and_for_temporaries() -> None:
    with cs.compile(block(), threads=1) as own:
        need = own.bound.memory_plan.arena_nbytes
    arena = align(np.zeros(need, np.uint8))
    x, y = align(np.zeros(X.size, np.float32)).reshape(X.shape), align(np.zeros(X.size, np.float32)).reshape(X.shape)
    with cs.compile(block(), threads=1, arena=arena, memory={"x": x, "y": y}) as plan:
        assert np.shares_memory(plan.bound.memory.arena, arena)
        x[:] = X
        plan.run()
        np.testing.assert_allclose(y, wanted(X), atol=1e-4)
        assert arena.any()
    for small in (arena[:-64], arena[1:]):
        with pytest.raises(PlanError, match="arena"):
            cs.compile(block(), arena=small)


@pytest.mark.parametrize(
    ("memory", "words"),
    [
        ({"z": np.zeros(4, np.float32)}, "memory for z"),
        ({"x": np.zeros((4, DIM), np.float32)}, "memory for 'x' came as float32"),
        ({"x": None}, "memory for 'x' came as NoneType; wanted an array or a DeviceArray"),
        ({"x": np.zeros(X.shape, np.float64)}, "memory for 'x' came as float64"),
        ({"y": np.zeros((DIM, 512), np.float32).T}, "contiguous"),
    ],
)
def test_memory_that_does_not_fit_is_refused_by_name(memory: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        cs.compile(block(), memory=memory)


def test_wrong_inputs_are_refused_by_name_and_change_nothing() -> None:
    with cs.compile(block(), threads=1) as plan:
        before = plan.run(x=X[:9])["y"].tobytes()
        for given, words in (
            ({"z": X}, "no input 'z'; this plan has x"),
            ({"x": X[:9].astype(np.float64)}, r"'x' came as float64 \[9, 48\]; wanted f32\[tokens<=512, 48\]"),
            ({"x": X[:9, :-1]}, r"'x' came as float32 \[9, 47\]"),
            ({"x": np.zeros((513, DIM), np.float32)}, r"\[513, 48\]"),
            ({"x": X[0]}, r"'x' came as float32 \[48\]"),
            ({"x": [1.0, 2.0]}, "'x' came as float64"),
        ):
            with pytest.raises(PlanError, match=words):
                plan.run(**given)
        assert plan.bound.extent(TOKENS) == 9
        assert plan.run(keep=True)["y"].tobytes() == before


def test_inputs_that_disagree_on_an_extent_are_refused() -> None:
    graph = cs.Graph()
    x, y = graph.input("x", (TOKENS, DIM), "f32"), graph.input("y", (TOKENS, DIM), "f32")
    graph.output("sum", cs.add(x, y))
    with cs.compile(graph, threads=1) as plan:
        assert plan.run(x=X[:4], y=X[:4])["sum"].shape == (4, DIM)
        with pytest.raises(PlanError, match=r"'y' came as float32 \[5, 48\], but another input has 4 tokens"):
            plan.run(x=X[:4], y=X[:5])
        with pytest.raises(PlanError, match=r"'tokens' got 513; wanted 0 to 512"):
            plan.set_extent(TOKENS, 513)


def test_inputs_that_no_thunk_reads_and_results_that_none_writes_are_there() -> None:
    graph = cs.Graph()
    x, unused = graph.input("x", (2, 8), "f32"), graph.input("unused", (3,), "i32")
    constant = graph.constant("c", np.arange(4, dtype=np.float32))
    for name, tensor in (("same", x), ("again", x), ("c", constant), ("flat", graph.reshape(unused, (1, 3)))):
        graph.output(name, tensor)
    values = RNG.normal(size=(2, 8)).astype(np.float32)
    with cs.compile(graph, threads=1) as plan:
        results = plan.run(x=values, unused=np.array([1, 2, 3], np.int32))
        assert np.array_equal(results["same"], values)
        assert np.array_equal(results["again"], values)
        assert results["c"].tolist() == [0, 1, 2, 3]
        assert results["flat"].tolist() == [[1, 2, 3]]


def test_state_survives_runs_and_is_the_callers() -> None:
    graph = cs.Graph()
    keys, values = (graph.state(n, TensorSpec(s, cs.Graph().input("x", (1,), "f32").spec.dtype)) for n, s in STATES)
    k, v = (graph.input(name, (1, 16), "f32") for name in "kv")
    positions, slots = (graph.input(name, (1,), "i32") for name in ("positions", "slots"))
    table = graph.constant("table", np.zeros((1, 1), np.int32))
    cs.kv_cache_update(keys, values, k, v, positions, slots, table, kv_heads=1, head_dim=16)
    graph.output("keys", keys)
    held = align(np.zeros(256, np.float32)).reshape(STATES[0][1])
    with cs.compile(graph, threads=1, memory={"keys": held}) as plan:
        for position in (0, 3):
            row = np.full((1, 16), position + 1, np.float32)
            at = np.array([position], np.int32)
            plan.run(k=row, v=row, positions=at, slots=np.zeros(1, np.int32))
        assert plan.states["keys"][0, 0, 0, :5].tolist() == [1, 0, 0, 4, 0]
        assert np.shares_memory(plan.states["keys"], held)


STATES = (("keys", (1, 1, 16, 16)), ("values", (1, 1, 16, 16)))


def test_explain_tells_variants_losers_waits_and_the_arena() -> None:
    with cs.compile(block(), threads=2) as plan:
        text, schedule = plan.explain(), plan.bound.schedule
        lines = text.splitlines()
        n_thunks = len(schedule.thunks)
        assert lines[0].startswith(f"{n_thunks} thunks, {sum(schedule.waits)} waits, 2 threads; arena ")
        assert f"arena {plan.bound.memory_plan.arena_nbytes} bytes" in lines[0]
        for thunk, wait, line in zip(schedule.thunks, schedule.waits, lines[1:], strict=False):
            assert line.startswith("|") == wait
            assert f"{thunk.name}: {thunk.op}/{thunk.variant}, {thunk.programs.bound} programs; {thunk.reason}" in line
        chosen = {c.variant.name for c in plan.choices if c.op.name == "matmul"}
        lost = [line for line in lines[lines.index("not chosen:") :] if line.startswith("  matmul/")]
        assert lost
        assert not any(f"matmul/{name} (simd)" in line for line in lost for name in chosen)
        temporaries = [b for b in schedule.buffers if b.lifetime is Lifetime.TEMP]
        assert len(lines) - lines.index("arena:") - 1 == len(temporaries) > 0


def test_the_arena_is_smaller_than_all_temporaries_together() -> None:
    graph = cs.Graph()
    x = graph.input("x", (64, DIM), "f32")
    for _ in range(12):
        x = cs.silu(x)
    graph.output("y", x)
    with cs.compile(graph, threads=1) as plan:
        memory = plan.bound.memory_plan
        assert memory.temp_nbytes_sum == 11 * 64 * DIM * 4
        assert memory.arena_nbytes == 2 * 64 * DIM * 4


def _growth_nbytes(run: Callable[[], object], times: int) -> int:
    """How much more Python holds after that many runs."""
    tracemalloc.start()
    try:
        run()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(times):
            run()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_allocate_nothing_that_stays(threads: int) -> None:
    x = X[:9].copy()
    with cs.compile(block(), threads=threads) as plan:
        for _ in range(3000):  # the interpreter's own free lists fill up first
            plan.run(x=x)
        assert _growth_nbytes(plan.bound.run, 200) < 1024
        blocks = sys.getallocatedblocks()
        for _ in range(200):
            plan.run(x=x)
        assert sys.getallocatedblocks() - blocks < 50


def test_a_closed_plan_refuses_to_run() -> None:
    plan = cs.compile(block(), threads=1)
    plan.close()
    plan.close()
    with pytest.raises(PlanError, match="closed"):
        plan.run(x=X[:3])


def test_what_cannot_be_compiled_is_an_error_that_names_it() -> None:
    with pytest.raises(PlanError, match="activations 'f8'"):
        cs.compile(block(), activations="f8")
    with pytest.raises(CamshaftError, match="threads=0"):
        cs.compile(block(), threads=0)
    graph = cs.Graph()
    x = graph.input("x", (2, 8), "f32")
    with pytest.raises(ShapeError, match="rms_norm"):
        cs.rms_norm(x, np.ones(9, np.float32), eps=1e-5)


def test_plans_share_one_copy_of_a_weight() -> None:
    class Counted:
        asked = 0
        bytes = np.ascontiguousarray(M).reshape(-1).view(np.uint8)

        def data(self) -> np.ndarray:
            Counted.asked += 1
            return self.bytes

    weights, source = Weights(), Counted()
    plans = []
    for rows in (1, 8):
        graph = cs.Graph()
        m = graph.constant("m", source, TensorSpec(M.shape, graph.input("x", (rows, DIM), "f32").spec.dtype))
        graph.output("y", cs.matmul(graph.inputs["x"], m, transpose_b=True))
        plans.append(cs.compile(graph, threads=1, weights=weights))
    assert weights.nbytes == M.nbytes
    for plan, rows in zip(plans, (1, 8), strict=True):
        np.testing.assert_allclose(plan.run(x=X[:rows])["y"], X[:rows] @ M.T, atol=1e-4)
        plan.close()


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


def test_weights_do_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(mmap.mmap):
        def madvise(self, *advice: int) -> None:
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("camshaft.plan.memory.allocate.mmap.mmap", Refusing)
    with cs.compile(block(), threads=1) as plan:
        assert np.isfinite(next(iter(plan.run(x=X[:3]).values()))).all()


def test_out_of_memory_says_how_much() -> None:
    graph = cs.Graph()
    x = graph.input("x", (1 << 58,), "f32")
    graph.custom(print, [x], [])
    with pytest.raises(PlanError, match=f"out of memory: x needs {4 << 58} bytes"):
        cs.compile(graph, threads=1)
    with pytest.raises(ShapeError, match=f"input 'y': got .* of {4 << 61} bytes"):
        graph.input("y", (1 << 61,), "f32")


def test_a_plan_is_shown_in_one_line() -> None:
    with cs.compile(block(), threads=1) as plan:
        assert re.fullmatch(r"ExecutionPlan\(x -> .*y.*; \d+ thunks\)", repr(plan))

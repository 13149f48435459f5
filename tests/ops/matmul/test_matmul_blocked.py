"""Products in blocks: every form of them against its reference at ragged sizes, and the same bytes for any number of threads."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from camshaft import dtypes
from camshaft.backends.cpu.device import cpu_device
from camshaft.emit.llvm.module import emit
from camshaft.graph import functions
from camshaft.graph.graph import Graph
from camshaft.ops import op as ops
from camshaft.ops.kernels.launch import signature
from camshaft.ops.matmul import skinny
from camshaft.ops.matmul.blocks import block_sizes, blocked
from camshaft.ops.matmul.blocks.bf16 import BF16_DOT
from camshaft.ops.matmul.blocks.blocked import BLOCKED
from camshaft.ops.matmul.matmul import OP
from camshaft.ops.spec import TensorSpec
from camshaft.plan.compile import compile
from camshaft.validation.cases import kinds_of
from camshaft.validation.run import run_variant
from camshaft.validation.validate import check_sample, node_of
from camshaft.validation.worker import samples_of
from tests.support.compilers.cross import CrossTarget, assembly_for
from tests.support.quick import each_value

VARIANTS = {v.name: v for v in OP.variants}
ZEN = frozenset({"avx2", "fma", "avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512bf16"})


def sample(m: int, k: int, n: int, dtype, transposed: bool = False) -> ops.Sample:
    rng = np.random.default_rng(m + k + n)
    a, b = (rng.normal(size=shape).astype(np.float32).astype(dtype) for shape in ((m, k), (k, n)))
    return ops.Sample("", (a, b.T.copy() if transposed else b), {"transpose_b": True} if transposed else {})


def product(m: int, k: int, n: int, dtype) -> ops.NodeSpec:
    specs = tuple(TensorSpec(shape, dtype) for shape in ((m, k), (k, n)))
    return ops.NodeSpec(specs, OP.infer(specs, {}), {})


@pytest.mark.parametrize("shape", [(65, 300, 67), pytest.param((50, 130, 257), marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("name", "dtype", "packed"),
    [("blocked", np.float32, p) for p in (0, 1)] + [("bf16_dot", ml_dtypes.bfloat16, p) for p in (0, 1, 2)],
)
def test_parts_blocks_and_groups_with_ragged_ends(name, dtype, shape, packed) -> None:
    device = cpu_device("simd")
    chosen = VARIANTS[name].with_values({"packed": packed, "part": 128, "block": 32, "group": 64})
    given = sample(*shape, dtype)
    absent = VARIANTS[name].supports(product(*shape, dtypes.as_dtype(np.dtype(dtype))), device)
    if absent is not None:
        pytest.skip(absent)
    checked = check_sample(OP, chosen, device, given)
    assert checked.max_error <= checked.tolerance


@pytest.mark.parametrize(
    ("dtype", "transposed"), each_value([np.float32, np.float16, ml_dtypes.bfloat16], [False, True])
)
def test_results_are_equal_for_any_number_of_threads(dtype, transposed) -> None:
    given = sample(300, 640, 450, dtype, transposed)
    found = []
    for threads in (1, 2, 3):
        graph = Graph()
        a, b = (graph.input(name, x.shape, str(x.dtype)) for name, x in zip("ab", given.inputs, strict=True))
        graph.output("y", functions.matmul(a, b, **given.attrs))
        with compile(graph, threads=threads, backend="simd") as plan:
            found.append(plan.run(a=given.inputs[0], b=given.inputs[1])["y"].tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(("dtype", "shape"), [(np.float32, (17, 40, 130)), (np.float16, (7, 130, 96))])
def test_rows_that_are_prefetched_change_no_bit(dtype, shape, monkeypatch) -> None:
    given, device, found = sample(*shape, dtype), cpu_device("simd"), []
    for figures in (block_sizes.ZEN4, replace(block_sizes.ZEN4, room=0)):
        monkeypatch.setattr(block_sizes, "measured_on", lambda target, figures=figures: figures)
        monkeypatch.setattr(blocked, "measured_on", lambda target, figures=figures: figures)
        chosen = VARIANTS["blocked"].with_values({"packed": block_sizes.IN_PLACE})
        launch = chosen.build(node_of(OP, given), device).launches[-1]
        assert launch.constants.get("rows_ahead", 0) == (0 if figures.room else figures.rows_ahead)
        checked = check_sample(OP, chosen, device, given)
        assert checked.max_error <= checked.tolerance
        found += run_variant(chosen, node_of(OP, given), device, given.inputs)
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("shape", [(1, 40, 1024), (3, 21, 2100), (2, 9, 1500), (1, 8, 5000)])
@pytest.mark.parametrize("group", [256, 2048])
def test_few_rows_read_by_pages_have_the_same_bits(shape, group, monkeypatch) -> None:
    """Columns that are whole pages and others, and depths that are not whole steps."""
    given, device, found = sample(*shape, np.float32), cpu_device("simd"), []
    chosen = VARIANTS["skinny"].with_values({"group": group})
    for least in (0, 1 << 60):
        monkeypatch.setattr(skinny, "PAGED_NBYTES", least)
        checked = check_sample(OP, chosen, device, given)
        assert checked.max_error <= checked.tolerance
        found += run_variant(chosen, node_of(OP, given), device, given.inputs)
    assert found[0].tobytes() == found[1].tobytes()


@pytest.mark.parametrize("kinds", ["f32/rows,f32/rows", "bf16/rows,bf16/rows"])
def test_a_plans_proof_has_a_sample_for_each_variant_of_this_cpu(kinds: str) -> None:
    device = cpu_device("simd")
    every = [node_of(OP, s) for s in OP.samples() if kinds_of(node_of(OP, s)) == kinds]
    for variant in (v for v in OP.variants if "simd" in v.backends):
        taken = [node for node in every if variant.supports(node, device) is None]
        chosen = samples_of(OP, kinds, lambda node, variant=variant: variant.supports(node, device) is None)
        if taken:
            assert [node for _, node in chosen if node in taken] == [node for _, node in chosen], variant.name


def test_a_program_of_few_rows_pairs_its_own_panels_in_scratch() -> None:
    specs = TensorSpec((64, 1024), dtypes.bf16), TensorSpec((1024, 4096), dtypes.bf16)
    node = ops.NodeSpec(specs, OP.infer(specs, {}), {})
    build = BF16_DOT.build(node, replace(cpu_device("simd"), lanes=16, features=ZEN))
    (launch,) = build.launches
    assert build.scratch == ()
    assert launch.constants["paired_part"]
    assert launch.constants["block"] * launch.constants["tile"] >= 64, "all rows are one program's"


@pytest.mark.parametrize("rows", [64, 96, 130])
def test_a_deep_product_of_one_panel_is_cut_for_two_workers(rows: int) -> None:
    node = product(rows, 4096, 64, dtypes.bf16)
    launch = BF16_DOT.build(node, replace(cpu_device("simd"), lanes=16, features=ZEN)).launches[-1]
    tiles, per = launch.grid[2].dim, launch.grid[2].per
    n_programs = -(-tiles // per)
    first = min(per * -(-n_programs // 2), tiles)
    assert first - (tiles - first) <= per, "halves of the programs differ by more than one"


@pytest.mark.parametrize(("k", "n"), [(576, 576), (576, 1536), (1536, 576), (576, 192)])
def test_halves_of_a_products_programs_are_alike(k: int, n: int) -> None:
    """What two workers get of a prompt's products, tiles of rows times columns, differs by a program and a half at most."""
    specs = TensorSpec((512, k), dtypes.bf16), TensorSpec((n, k), dtypes.bf16)
    node = ops.NodeSpec(specs, OP.infer(specs, {"transpose_b": True}), {"transpose_b": True})
    launch = BF16_DOT.build(node, replace(cpu_device("simd"), lanes=16, features=ZEN)).launches[-1]
    _, columns, rows = launch.grid
    width, panels, tiles = 16 * launch.constants["vectors"], columns.dim, rows.dim
    work = [
        min(rows.per, tiles - row) * min(columns.per, panels - column) * width
        for column in range(0, panels, columns.per)
        for row in range(0, tiles, rows.per)
    ]
    first = sum(work[: -(-len(work) // 2)])
    assert 2 * first - sum(work) <= 1.5 * max(work)


def test_every_choice_of_sizes_fits_a_programs_scratch() -> None:
    target = cpu_device("simd")
    for m in (1, 5, 64, 300, 5000):
        for k in (1, 64, 1000, 20000):
            for n in (1, 33, 4096):
                node = product(m, k, n, dtypes.f16)
                assert blocked.refusal(node, target, blocked.defaults(node, target)) is None, (m, k, n)


@pytest.mark.parametrize(("variant", "dtype", "word"), [(BLOCKED, "f32", "vfmadd"), (BF16_DOT, "bf16", "vdpbf16ps")])
def test_the_inner_loop_is_24_of_the_instruction_and_spills_nothing(variant, dtype, word) -> None:
    node, target = product(96, 128, 128, getattr(dtypes, dtype)), CrossTarget("x86_64-unknown-linux-gnu", "znver4", ZEN)
    build = variant.build(node, replace(cpu_device("simd"), lanes=16, features=ZEN))
    launch = build.launches[-1]
    made = signature(launch, node, build)
    traced = made.request(launch).trace()
    text = assembly_for(target, emit(traced, target.at(16), "kernel"))
    loops = [block for block in text.split("\n.LBB") if block.count(f"\t{word}") >= 24]
    assert loops
    for loop in loops:
        assert loop.count(f"\t{word}") == 24
        spills = [line for line in loop.splitlines() if "zmm" in line and "(%rsp)" in line]
        assert not spills, "a sum or a row of b went to the stack"

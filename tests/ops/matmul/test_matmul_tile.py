"""matmul's tile variant beyond the table test: 16-bit operands on matrix units, sizes astride its tiles, and who chooses it."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.null.device import NullDevice, make
from camshaft.dtypes import DTYPES, bf16, f16, f32
from camshaft.emit.nvptx.module import MOST_SHARED_NBYTES, emit, shared_nbytes, simt_form
from camshaft.emit.target import GPU_TARGETS
from camshaft.ops.kernels.launch import signature
from camshaft.ops.matmul.tile import LEAST_NBYTES
from camshaft.ops.op import NodeSpec, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.selection.select import select
from camshaft.validation.validate import check_sample, node_of
from tests.support.devices.ptxas import assemble, find_tool, joined, ptx_of
from tests.support.devices.simulated_gpu import LIMITS, SimulatedDevice
from tests.support.needs import require
from tests.support.quick import full, quick_of

OP = ops.get("matmul")
TILE = next(variant for variant in OP.variants if variant.name == "tile")
SHAPES = (
    (1, 16, 15),
    (15, 17, 16),
    (16, 32, 33),
    (17, 33, 31),
    (33, 64, 65),
    (64, 65, 64),
    (65, 96, 70),
    (130, 40, 30),
)


def sample(dtypes, m, k, n, transposed, batch=()) -> Sample:
    rng = np.random.default_rng(m + k + n)
    a, b = rng.normal(size=(*batch, m, k)), rng.normal(size=(n, k) if transposed else (k, n))
    pair = tuple(x.astype(DTYPES[d].numpy) for x, d in zip((a, b), dtypes, strict=True))
    return Sample(f"{dtypes} {m}x{k}x{n}", pair, {"transpose_b": transposed})


@pytest.mark.parametrize(
    ("dtypes", "transposed"),
    [
        full(("f16", "f16"), False),
        (("bf16", "bf16"), True),
        full(("f16", "f16"), True),
        full(("bf16", "bf16"), False),
        *(full((a, b), transposed) for a, b in (("f32", "f32"), ("f16", "bf16")) for transposed in (False, True)),
    ],
)
def test_sizes_astride_tiles_and_blocks(dtypes, transposed) -> None:
    for i, (m, k, n) in enumerate(SHAPES):
        device = SimulatedDevice((32, 128)[i % 2], seed=m)
        found = check_sample(OP, TILE, device, sample(dtypes, m, k, n, transposed))
        assert found.max_error <= found.tolerance, f"{found.sample}: {found.max_error}"


def test_a_batch_of_16_bit_matrices() -> None:
    found = check_sample(OP, TILE, SimulatedDevice(64), sample(("bf16", "bf16"), 18, 20, 34, True, (2, 3)))
    assert found.max_error <= found.tolerance


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_depth_of_a_small_product_is_divided(dtype) -> None:
    given, device = sample((dtype, dtype), 9, 1100, 40, True, (2,)), SimulatedDevice(128)
    assert len(TILE.build(node_of(OP, given), device).launches) == 2
    found = check_sample(OP, TILE, device, given)
    assert found.max_error <= found.tolerance


@pytest.mark.parametrize(("depth", "buffers", "slices"), [(33, 4, 8), full(40, 3, 1), full(130, 4, 2), (200, 3, 1)])
def test_slices_and_buffers_may_exceed_the_blocks(depth, buffers, slices) -> None:
    """Slices past the depth are zeros, and copies are ahead of blocks that are not there."""
    chosen = TILE.with_values({"step": 16, "buffers": buffers, "slices": slices})
    for transposed in (False, True):
        given = sample(("bf16", "bf16"), 17, depth, 19, transposed, (2,))
        found = check_sample(OP, chosen, SimulatedDevice(64, seed=depth), given)
        assert found.max_error <= found.tolerance, f"transposed {transposed}: {found.max_error}"


def test_few_rows_or_columns_have_no_tiles_of_many() -> None:
    """A tile that is mostly zeros multiplies for nothing, however many there are."""

    def tile_of(m: int, n: int) -> list[int]:
        assert TILE.tunables is not None
        values = TILE.tunables.defaults(node(m, 64, n, f16), SimulatedDevice(128))
        return [values["rows"], values["columns"]]

    assert tile_of(16, 50000) == [16, 64]
    assert tile_of(50000, 16) == [64, 16]
    assert tile_of(50000, 64) == [128, 64]
    assert tile_of(65, 50000) == [128, 128]


@pytest.mark.parametrize("dtype", [bf16, f32])
def test_tiles_and_collectives_fit_the_memory_of_a_workgroup(dtype) -> None:
    """CUDA's device refuses a kernel beyond it."""
    for m, n in ((4096, 4096), (4096, 64), (64, 50000), (9, 40)):
        given, device = node(m, 1100, n, dtype), SimulatedDevice(128)
        build = TILE.build(given, device)
        for launch in build.launches:
            traced = signature(launch, given, build).request(launch).trace()
            assert shared_nbytes(simt_form(traced, launch.lanes or 128)) <= MOST_SHARED_NBYTES


def text_on(target: NullDevice, node: NodeSpec) -> str:
    build = TILE.build(node, target)
    (launch,) = build.launches
    made = signature(launch, node, build)
    return target.compile(made.request(launch)).text


def test_16_bit_operands_meet_in_matrix_units() -> None:
    halves, floats = (node_of(OP, sample((d, d), 64, 64, 64, True)) for d in ("f16", "f32"))
    assert "mma.sync" in text_on(make("ptx"), halves)
    assert "mma.sync" not in text_on(make("ptx"), floats)
    assert all("cp.async" in text_on(make("ptx"), n) for n in (halves, floats))


def node(m: int, k: int, n: int, dtype=f32) -> NodeSpec:
    specs, attrs = (TensorSpec((m, k), dtype), TensorSpec((n, k), dtype)), {"transpose_b": True}
    return NodeSpec(specs, OP.infer(specs, attrs), attrs)


@pytest.mark.parametrize("name", ["null:wgsl", full("null:ptx"), full("null:msl")])
def test_where_lanes_are_threads_it_is_chosen_for_many_rows(name) -> None:
    assert select(OP, node(64, 512, 512), name).variant.name == "tile"
    assert select(OP, node(256, 64, 32, f16), name).variant.name == "tile"
    assert select(OP, node(1, 512, 512), name).variant.name != "tile"


def test_who_cannot_have_it_says_why() -> None:
    assert TILE.supports(node(64, 64, 64), make("")) == "takes devices whose lanes are threads of a workgroup"
    small = SimulatedDevice(limits=LIMITS | {"workgroup_memory": 8192})
    reason = f"wants {LEAST_NBYTES} bytes of workgroup memory; got 8192"
    assert TILE.supports(node(64, 64, 64), small) == reason
    assert {"scalar", "simd", "c", "blas"}.isdisjoint(TILE.backends)


@pytest.mark.parametrize("processor", quick_of(sorted(GPU_TARGETS), ["sm_90a"]))
def test_large_tiles_stay_in_the_registers(processor) -> None:
    """Eight loads of matrices serve 32 products of a warp, and no sum goes to memory."""
    require(find_tool("ptxas"), "ptxas is not here: install the wheel nvidia-cuda-nvcc")
    target, device, texts = GPU_TARGETS[processor], SimulatedDevice(128), []
    for i, (columns, depth) in enumerate([(2048, 4096), (2048, 1001), (320, 4096)]):
        given = node(4096, depth, columns, f16)
        (launch,) = (build := TILE.build(given, device)).launches
        assert (launch.constants["m"], launch.constants["n"]) == (128, 128 if i < 2 else 64)
        form = simt_form(signature(launch, given, build).request(launch).trace(), launch.lanes or 0)
        texts.append(ptx_of(emit(form, target, f"k{i}"), target))
    assert texts[0].count("mma.sync") == 4 * texts[0].count("ldmatrix")
    report = assemble(joined(texts), processor)
    assert len(report) == len(texts)
    assert not {name: found for name, found in report.items() if found.spill_nbytes}


@pytest.mark.full
@pytest.mark.parametrize("dtypes", [("f32", "f32"), ("bf16", "bf16")])
def test_every_value_of_a_tunable_is_right_or_refused(dtypes) -> None:
    given, target, tried = sample(dtypes, 70, 40, 130, True), SimulatedDevice(), 0
    assert TILE.tunables is not None
    for name, values in TILE.tunables.values.items():
        for value in values:
            chosen = TILE.with_values({name: value})
            if chosen.supports(node_of(OP, given), target) is None:
                found = check_sample(OP, chosen, target, given)
                assert found.max_error <= found.tolerance, f"{name}={value}: {found.max_error}"
                tried += 1
    assert tried > 8
    crowded = TILE.with_values({"rows": 128, "columns": 128, "step": 16, "threads": 64})
    most = 128 if dtypes == ("bf16", "bf16") else 64  # a warp's sums on matrix units are shared by its threads
    assert crowded.supports(node_of(OP, given), target) == f"256 sums per thread; wanted at most {most}"
    large = TILE.with_values({"rows": 128, "columns": 128, "step": 64, "threads": 256})
    assert "a workgroup has 49152" in (large.supports(node_of(OP, given), target) or "")

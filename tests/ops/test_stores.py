"""Results written around the caches: the same bits, whatever the memory, by the instruction that is meant, and fenced."""

from __future__ import annotations

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.cpu.device import cpu_device
from camshaft.dtypes import as_dtype
from camshaft.emit.llvm.module import emit
from camshaft.lang import kernel
from camshaft.ops.elementwise.chains import chain
from camshaft.ops.kernels import blocks
from camshaft.ops.matmul.blocks import block_sizes
from camshaft.ops.op import NodeSpec, Sample
from camshaft.ops.spec import TensorSpec
from camshaft.validation.run import UNALIGNED_NAN, run_variant
from camshaft.validation.validate import check_sample, node_of
from tests.support.compilers.cross import CrossTarget, assembly_for
from tests.support.compilers.emit_harness import agree, trace
from tests.support.quick import quick_of

CHAIN = "chain f32,f32 y0=multiply(x0,x1) y1=silu(y0) -> y0,y1"
OPS = {name: ops.get(name) for name in ("softmax", "rms_norm", "layer_norm")} | {"chain": chain.op_of(CHAIN)}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "STREAM_NBYTES", 0)


def large(name: str, columns: int) -> Sample:
    """As many inputs as the op has, of 5 rows."""
    rng = np.random.default_rng(columns)
    x, y = (rng.normal(size=(5, columns)).astype(np.float32) for _ in range(2))
    inputs = {"softmax": (x,), "chain": (x, y), "rms_norm": (x, y[0]), "layer_norm": (x, y[0], y[1])}[name]
    return Sample(str(columns), inputs, {"eps": 1e-5} if "norm" in name else {})


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", quick_of(OPS, ("softmax", "chain")))
def test_streamed_results_agree_with_the_reference(name):
    op = OPS[name]
    for sample in (*op.samples(), *(large(name, n) for n in (64, 1024, 4096 + 64, 4096 + 5))):
        checked = check_sample(op, op.variants[0], cpu_device("simd"), sample)
        assert checked.max_error <= checked.tolerance, sample.name


@pytest.mark.parametrize("columns", [1024, 1021])
@pytest.mark.parametrize("name", OPS)
def test_no_bit_depends_on_streaming_or_on_where_memory_begins(name, columns, monkeypatch):
    op, sample = OPS[name], large(name, columns)
    node, found = node_of(op, sample), []
    for least in (0, 1 << 60):
        monkeypatch.setattr(blocks, "STREAM_NBYTES", least)
        for memory_fill in ((), (UNALIGNED_NAN,)):
            found.append(run_variant(op.variants[0], node, cpu_device("simd"), sample.inputs, {}, *memory_fill))
    for outputs in found[1:]:
        for a, b in zip(found[0], outputs, strict=True):
            np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def test_what_caches_hold_and_what_may_be_short_is_not_streamed():
    (sample,) = [s for s in OPS["layer_norm"].samples() if s.extents]
    device = cpu_device("simd")
    assert not blocks.streams(node_of(OPS["layer_norm"], sample), device)
    x, w = np.zeros((1024, 4096), np.float32), np.zeros(4096, np.float32)
    node = node_of(OPS["rms_norm"], Sample("", (x, w), {"eps": 1e-5}))
    assert blocks.streams(node, device)
    assert not blocks.streams(node, cpu_device("scalar"))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(65, 16, 128), (30, 130, 256), (12, 40, 192), (13, 33, 96), (12, 16, 72)])
def test_products_are_the_same_written_around_the_caches_or_not(shape, dtype, monkeypatch):
    """Whole and partial tiles of rows, one part of the depth and two, columns that are whole panels and others."""
    m, k, n = shape
    rng, op, device = np.random.default_rng(n), ops.get("matmul"), cpu_device("simd")
    inputs = tuple(rng.normal(size=size).astype(as_dtype(dtype).numpy) for size in ((m, k), (k, n)))
    given = Sample("", inputs, {"to": dtype})
    node, values = node_of(op, given), {"part": 128, "block": 32, "group": 64}
    for variant in (v for v in op.variants if v.name in ("blocked", "bf16_dot") and v.supports(node, device) is None):
        found = []
        for least in (0, 1 << 60):
            monkeypatch.setattr(block_sizes, "PAST_CACHES_NBYTES", least)
            for memory_fill in ((), (UNALIGNED_NAN,)):
                chosen = variant.with_values(values)
                found += run_variant(chosen, node, device, inputs, {}, *memory_fill)
        assert len({out.tobytes() for out in found}) == 1
        checked = check_sample(op, chosen, device, given)
        assert checked.max_error <= checked.tolerance


@pytest.mark.parametrize(
    ("shape", "dtype", "is_streamed"),
    [
        ((4096, 16, 4096), "f32", True),
        ((4096, 16, 4096), "bf16", True),
        ((1024, 64, 1024), "f32", False),  # a cache holds it
        ((4096, 16, 4095), "f32", False),  # rows begin within a line
        ((4096, 4096, 4096), "f32", False),  # later parts of the depth read it
        ((4096, 4096, 4096), "f16", True),  # sums of parts wait in scratch
    ],
)
def test_large_products_that_are_written_once_in_whole_lines_go_around_the_caches(shape, dtype, is_streamed):
    (m, k, n), op, attrs = shape, ops.get("matmul"), {"to": dtype}
    specs = TensorSpec((m, k), as_dtype(dtype)), TensorSpec((k, n), as_dtype(dtype))
    (blocked,) = (v for v in op.variants if v.name == "blocked")
    build = blocked.build(NodeSpec(specs, op.infer(specs, attrs), attrs), cpu_device("simd"))
    assert build.launches[-1].constants["streamed"] == is_streamed


@kernel
def vectors_doubled(k, x, out, *, n, width):
    row = k.program(0)
    for c in k.range(0, n, width):
        k.store_vector(out, k.load_vector(x, row, c, width=width) * 2.0, row, c, streamed=True)


@pytest.mark.parametrize(("dtype", "width", "goes_around"), [("f32", 16, True), ("bf16", 16, True), ("bf16", 8, False)])
def test_vectors_of_half_a_line_and_more_go_around_the_caches(dtype, width, goes_around):
    x = np.arange(3 * 64).reshape(3, 64).astype(as_dtype(dtype).numpy)
    (out,) = agree(vectors_doubled, [x, np.zeros_like(x)], grid=(3,), n=64, width=width)
    np.testing.assert_array_equal(out, 2 * x)
    target, lanes, _ = CPUS["AVX-512"]
    traced = trace(vectors_doubled, [x, x], grid=(3,), n=64, width=width)
    assert ("vmovnt" in assembly_for(target, emit(traced, target.at(lanes), "kernel"))) == goes_around


@kernel
def doubled(k, x, out, *, n):
    row = k.program(0)
    for c in k.lanes(n):
        k.stream(out, x[row, c] * 2.0, row, c)


@pytest.mark.parametrize("n", [16, 64, 77])
def test_a_streamed_store_is_a_store(n):
    x = np.arange(3 * n, dtype=np.float32).reshape(3, n)
    (out,) = agree(doubled, [x, np.zeros_like(x)], grid=(3,), n=n)
    np.testing.assert_array_equal(out, 2 * x)


BASE = frozenset({"sse2", "sse4.1", "avx2", "fma", "f16c"})
X86, ARM = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"
CPUS = {
    "AVX-512": (CrossTarget(X86, "znver4", BASE | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}), 64, "zmm"),
    "AVX2": (CrossTarget(X86, "haswell", BASE), 32, "ymm"),
    "SSE2": (CrossTarget(X86, "x86-64", frozenset({"sse2"})), 4, None),
    "NEON": (CrossTarget(ARM, "cortex-a76", frozenset({"neon"})), 16, None),
}


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("n", [256, 250])
def test_whole_lines_go_around_the_caches_and_a_fence_follows(cpu, n):
    """Rows that begin within a line are stored as ever, and so are the other targets'."""
    target, lanes, register = CPUS[cpu]
    x = np.zeros((3, n), np.float32)
    text = assembly_for(target, emit(trace(doubled, [x, x], grid=(3,), n=n), target.at(lanes), "kernel"))
    around = [line for line in text.splitlines() if "vmovnt" in line]
    assert bool(around) == (register is not None and n % 16 == 0)
    assert all(register in line for line in around)
    assert ("sfence" in text) == bool(around)

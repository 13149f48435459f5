"""C text: loops, masks, variables, memory and grids against the interpreter; accuracy; warnings; what a reader finds in it."""

import subprocess
from shutil import which

import numpy as np
import pytest

from camshaft import ops
from camshaft.backends.c.compilers import FLAGS
from camshaft.backends.registry import device
from camshaft.dtypes import DTYPES, f32, i64
from camshaft.emit.c.module import emit
from camshaft.lang import kernel
from camshaft.ops.kernels.launch import signature
from camshaft.ops.op import Launch
from camshaft.validation.validate import node_of
from tests.emit.c_family.test_c_instructions import all_explicit, arrays
from tests.emit.llvm import structure_kernels as structure
from tests.emit.llvm import test_accuracy as accuracy
from tests.support.compilers.c_harness import agree, through_c
from tests.support.compilers.emit_harness import trace
from tests.support.needs import require
from tests.support.quick import full, quick_of
from tests.support.samples import samples


@kernel
def tile_product(k, a, b, out):
    left, total = k.scratch(f32, 16, 16), k.tile(16, 32)
    k.async_copy(left, a, 0, 0, rows=13)
    k.async_wait()
    total.mma(left, (0, 0), b, (0, 0))
    total.store(out, (0, 0), columns=31)


def test_tiles_become_loops():
    agree(tile_product, [floats(13, 16), floats(16, 32, seed=1), np.zeros((16, 32), np.float32)], rtol=1e-6, atol=1e-6)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@kernel
def scaled_rows(k, x, w, out, n, *, dim):
    # y[r, c] = x[r, c] w[c] / sum_c x[r, c]^2, for n rows
    row, squares = k.program(0), k.accumulator("sum")
    for c in k.lanes(dim):
        squares += x[row, c] ** 2
    total = k.lanes_sum(squares)
    for c in k.lanes(dim):
        weighted = x[row, c] * w[c]
        with k.when(row < n):
            out[row, c] = weighted / total


def test_a_reader_finds_names_lines_and_the_formula():
    given = [floats(3, 5), floats(5), floats(3, 5)]
    text = emit(trace(scaled_rows, given, scalars=("n",), grid=(3,), dim=5), "kernel")
    assert "// y[r, c] = x[r, c] w[c] / sum_c x[r, c]^2, for n rows" in text
    assert "float squares = 0.0f;" in text
    assert "squares += " in text
    assert "const float weighted = a0[row * 5 + c] * a1[c];" in text
    line = scaled_rows.function.__code__.co_firstlineno + 8
    assert f"// line {line}: weighted = x[row, c] * w[c]" in text
    agree(scaled_rows, given, scalars={"n": 2}, grid=(3,), dim=5, rtol=1e-6)


@kernel
def stale(k, x, out, *, n):
    """Values read before a store or a set mean what they meant then."""
    last = k.var(0.0)
    for i in k.range(n):
        before, kept = x[0, i], last.value
        out[0, i] = before + 1
        x[0, i] = 7.0
        last.set(before)
        x[1, i] = before + kept
    stop = k.var(0, i64)
    stop.set(stop.value + n)
    for _ in k.range(stop.value):
        stop.set(stop.value + 1)
    out[1, 0] = stop.value.to(f32)


def test_values_keep_what_they_were():
    x, out = agree(stale, [floats(2, 9), np.zeros((2, 9), np.float32)], outputs=2, n=9)
    assert out[1, 0] == 18
    assert (x[0] == 7).all()


@pytest.mark.parametrize("n", quick_of([1, 7, 64, 77], [1, 77]))
def test_flow_is_what_the_interpreter_says(n):
    x = floats(n)
    agree(structure.affine, [x, np.full(n, 7, np.float32)], n=n, start=0)
    agree(structure.set_under_mask, [x, np.full(n, 7, np.float32)], n=n)
    agree(structure.branches, [floats(3, n), np.zeros((3, n), np.float32)], grid=(3,), n=n)
    whole = np.random.default_rng(1).integers(-99, 99, n).astype(np.int32)
    outputs = [np.zeros(3, np.float32), np.zeros(2, np.int32)]
    agree(structure.reductions, [x, whole, *outputs], outputs=2, n=n, rtol=1e-6, atol=1e-5)


@kernel
def grid_and_counts(k, x, out, rows, *, width):
    block, row = k.program(0), k.program(1)
    left = rows - block * 4
    v = k.load_vector(x, row, block * 4, width=width, count=left)
    k.store_vector(out, v * 2 + k.iota(width, i64).to(f32), row, block * 4, count=left)


@pytest.mark.parametrize("rows", quick_of([1, 4, 7, 12], [1, 7]))
def test_grids_of_run_time_sizes_and_counted_vectors(rows):
    given = [floats(3, 12), np.full((3, 12), 7, np.float32)]
    (out,) = agree(grid_and_counts, given, scalars={"rows": rows}, grid=(("rows", 4), 3), width=4)
    assert (out[:, rows:] == 7).all()


@kernel
def short_arrays(k, x, out, *, n, width):
    for i in k.lanes(n):
        out[0, i] = x[0, i]
    for i in k.range(0, n, width):
        k.store_vector(out, k.load_vector(x, 1, i, width=width), 1, i)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_every_dtype_is_loaded_and_stored(dtype):
    rng = np.random.default_rng(2)
    x = (rng.integers(0, 1 << 16, (2, 64)) & 0x7BFF).astype(np.uint16).view(np.float16).astype(np.float64)
    x = (x > 1 if dtype.kind == "b" else np.clip(x, 0, 100) if dtype.is_integer else x).astype(dtype.numpy)
    agree(short_arrays, [x, np.zeros((2, 64), dtype.numpy)], n=64, width=16)


@pytest.mark.parametrize("dtype", quick_of([np.float32, np.float64], [np.float32]))
@pytest.mark.parametrize("name", accuracy.WORST_ULP)
def test_accuracy_is_what_the_instruction_table_states(name, dtype):
    x = accuracy.sweeps(name, dtype)
    got = np.zeros_like(x)
    through_c(trace(accuracy.apply, [x, got], n=x.size, name=name), [x, got])
    with np.errstate(all="ignore"):
        wide = accuracy.WIDE.get(name, getattr(np, name, None))(x.astype(accuracy.WIDER[dtype]))
        finite = np.isfinite(wide.astype(dtype))
        np.testing.assert_array_equal(got[~finite], wide[~finite].astype(dtype))
        assert accuracy.ulps(got[finite], wide[finite], dtype).max() <= accuracy.WORST_ULP[name]


def texts():
    """A kernel of each variant of each op, and all instructions as vectors."""
    target = device("cpu:c")
    for op in ops.all_ops():
        for variant in op.variants:
            if "c" not in variant.backends:
                continue
            nodes = (node_of(op, sample) for sample in samples(op.name))
            node = next((n for n in nodes if variant.supports(n, target) is None), None)
            assert node is not None, f"{op.name}/{variant.name} lists c among its backends and supports no sample there"
            build = variant.build(node, target)
            for launch in (la for la in build.launches if isinstance(la, Launch)):
                made = signature(launch, node, build)
                traced = made.request(launch).trace()
                yield f"{op.name}_{variant.name}_{launch.name}", emit(traced, "kernel")
    for name in ("f32", "f64", "i32", "u32", "i64"):
        traced = trace(all_explicit, arrays(DTYPES[name]), 2, n=64, dtype=name, width=64)
        yield f"all_{name}", emit(traced, "kernel")


@pytest.mark.parametrize(
    ("machine", "compiler"),
    [
        pytest.param("-march=native", "gcc", marks=pytest.mark.soak),  # so cpu:c compiles each op
        full("-march=x86-64", "clang"),
    ],
)
def test_text_compiles_without_warnings(compiler, machine, tmp_path):
    require(which(compiler), f"no {compiler}")
    meant = [flag for flag in FLAGS if flag.startswith(("-fwrapv", "-ffp", "-fno-math", "-fno-trap"))]
    # both sides of an `and` are computed, as the language has no branch there
    strict = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-bitwise-instead-of-logical",
        *meant,
        machine,
        "-fsyntax-only",
    ]
    files = []
    for name, text in texts():
        files.append(tmp_path / f"{name}.c")
        files[-1].write_text(text)
    assert len(files) > 20
    result = subprocess.run([compiler, *strict, *files], capture_output=True, text=True, timeout=300, check=False)
    assert (result.returncode, result.stderr[:2000]) == (0, "")

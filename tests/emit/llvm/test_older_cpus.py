"""Code for CPUs that lack an instruction: it gives the same, and asks for no function that may not exist."""

import struct

import llvmlite.binding as llvm
import numpy as np
import pytest
from ml_dtypes import bfloat16

from camshaft.emit.llvm.module import emit
from camshaft.emit.target import CpuTarget
from camshaft.lang import kernel
from tests.support.compilers.emit_harness import guarded, guards_whole, native, trace

OLD = {"sse2", "sse4.1"}
C_FUNCTIONS = {"memset", "memcpy", "memmove"}
# A row of LLVM: triple, CPU, features for it, features as camshaft is told of them.
OLD_TARGETS = {
    "x86-64 of 2008": ("x86_64-unknown-linux-gnu", "nehalem", "", OLD),
    "x86-64 of 2013": ("x86_64-unknown-linux-gnu", "haswell", "", {*OLD, "avx2", "fma", "f16c"}),
    "AArch64": ("aarch64-unknown-linux-gnu", "generic", "+neon", {"neon"}),
    "RISC-V": ("riscv64-unknown-linux-gnu", "generic-rv64", "+m,+a,+f,+d,+c", set[str]()),
}


@kernel
def copied(k, x, out, *, n):
    for c in k.lanes(n):
        out[c] = x[c]


@kernel
def multiplied_and_added(k, x, y, z, out, *, n):
    for c in k.lanes(n):
        out[c] = k.fma(x[c], y[c], z[c])


@kernel
def gathered_shorts(k, x, index, out, *, n):
    # values of 16 bits that are picked, masked and reduced: what LLVM would like to keep in an f32 meanwhile
    total = k.accumulator("sum")
    for c in k.lanes(n):
        with k.when(index[c] > 2):
            total += k.exp(k.gather(x, index[c])) * k.fma(x[c], x[c], 1.0)
    mean = k.lanes_sum(total) / n
    for c in k.lanes(n):
        out[c] = k.floor(x[c]) * mean


def compiled(function, arrays, lanes):
    """What the code for an old CPU gives in the last array. Arrays are long: NumPy has what is wanted, not the interpreter."""
    pairs = [guarded(a) for a in arrays]
    native(trace(function, arrays, n=arrays[-1].size), lanes, OLD)([copy for copy, _ in pairs])
    assert all(guards_whole(*pair) for pair in pairs), "bytes around an array were written"
    return pairs[-1][0]


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_every_short_float_widens_exactly(dtype, lanes):
    x = np.arange(65536, dtype=np.uint16).view(dtype)
    got = compiled(copied, [x, np.zeros(x.size, np.float32)], lanes)
    wanted = x.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    real = ~np.isnan(wanted)
    np.testing.assert_array_equal(got[real].view(np.uint32), wanted[real].view(np.uint32))


@pytest.mark.parametrize("lanes", [1, 4, 16])
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_floats_round_to_the_nearest_short(dtype, lanes):
    short = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float32)
    real = short[np.isfinite(short)]
    between = real.view(np.uint32) & 0xFFFFE000 | np.random.default_rng(0).choice(
        [0xFFF, 0x1000, 0x1001], real.size
    ).astype(np.uint32)
    random = np.random.default_rng(1).integers(0, 2**32, 30000, np.uint32)
    x = np.concatenate([short, between.view(np.float32), random.view(np.float32)])
    got = compiled(copied, [x, np.zeros(x.size, dtype)], lanes)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = x.astype(dtype)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    np.testing.assert_array_equal(got.view(np.uint16)[~np.isnan(x)], wanted.view(np.uint16)[~np.isnan(x)])


def test_a_multiply_add_without_the_instruction_rounds_once():
    rng = np.random.default_rng(2)
    x, y = (rng.normal(size=20000).astype(np.float32) for _ in range(2))
    z = (-x * y * (1 + rng.choice([0, 1e-7, 1], x.size))).astype(np.float32)
    wanted = (x.astype(np.float64) * y + z).astype(np.float32)
    got = compiled(multiplied_and_added, [x, y, z, np.zeros_like(x)], 4)
    np.testing.assert_array_equal(got, wanted)


def undefined_symbols(data):
    """The functions that an ELF object wants from elsewhere."""
    sections = {s.name(): s.data() for s in llvm.ObjectFileRef.from_data(data).sections()}
    names, entries = sections[b".strtab"], struct.iter_unpack("<IBBHQQ", sections[b".symtab"])
    return {names[e[0] : names.index(b"\0", e[0])].decode() for e in list(entries)[1:] if e[3] == 0}


@pytest.mark.parametrize("name", OLD_TARGETS)
@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_no_other_cpu_needs_a_function_that_may_not_exist(name, dtype):
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, cpu, flags, features = OLD_TARGETS[name]
    arrays = [np.zeros(99, dtype), np.zeros(99, np.int32), np.zeros(99, dtype)]
    text = emit(trace(gathered_shorts, arrays, n=99), CpuTarget(triple.split("-")[0], 4, frozenset(features)), "f")
    module = llvm.parse_assembly(text)
    module.triple = triple
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=cpu, features=flags, opt=2, reloc="pic", codemodel="small", jit=True
    )
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    assert undefined_symbols(machine.emit_object(module)) <= C_FUNCTIONS

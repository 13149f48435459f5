"""byte_lookup: 16 bytes by 4-bit indexes, against a plain Python table. (In MSL: test_msl.py.)"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from camshaft.backends.cpu.compile import compile_module, load_object
from camshaft.dtypes import u32
from camshaft.emit.llvm.context import Context, Rules
from camshaft.emit.llvm.expanded.dots import prmt
from camshaft.emit.llvm.module import emit
from camshaft.emit.nvptx.module import emit as emit_ptx
from camshaft.emit.nvptx.module import simt_form
from camshaft.emit.target import CpuTarget, GpuTarget
from camshaft.errors import KernelError
from camshaft.lang import kernel
from tests.support.compilers import c_harness, emit_harness, wgsl_harness
from tests.support.compilers.cross import CrossTarget, assembly_for
from tests.support.compilers.emit_harness import FEATURES, trace
from tests.support.devices.ptxas import ptx_of

TABLE = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 255)
N = 128
FEATURE_SETS = {"host": FEATURES, "avx2": {"avx2", "fma", "f16c"}, "ssse3": {"ssse3"}, "masks": set()}


@kernel
def lanes(k, words, out, *, n):
    for c in k.lanes(n):
        out[c] = k.byte_lookup(words[c], TABLE)


@kernel
def one_by_one(k, words, out, *, n):
    for c in k.range(n):
        out[c] = k.byte_lookup(words[c] & 0x0F0F0F0F, TABLE)


@kernel
def vectors(k, words, out, *, n, width):
    for c in k.range(0, n, width):
        k.store_vector(out, k.byte_lookup(k.load_vector(words, c, width=width), TABLE), c)


@kernel
def any_table(k, words, table, out, *, n):
    for c in k.lanes(n):
        out[c] = k.apply("byte_lookup", words[c], *(table[i, c] for i in range(4)))


def given() -> list[np.ndarray]:
    """Words of all 16 indexes at every byte, whose high nibbles must not count, and where results go."""
    words = np.random.default_rng(1).integers(0, 1 << 32, N, np.uint64).astype(np.uint32)
    words[:16] = np.arange(16, dtype=np.uint32) * 0x11111111
    return [words, np.zeros(N, np.uint32)]


def wanted() -> np.ndarray:
    octets = given()[0].view(np.uint8)
    return np.array([TABLE[b & 15] & 255 for b in octets], np.uint8).view(np.uint32)


@pytest.mark.parametrize("features", FEATURE_SETS)
def test_llvm(features) -> None:
    chosen = FEATURE_SETS[features]
    for form in (lanes, one_by_one):
        np.testing.assert_array_equal(emit_harness.agree(form, given(), n=N, features=chosen)[0], wanted())
    for width in (1, 2, 4, 8, 16, 32, 64):
        (out,) = emit_harness.agree(vectors, given(), n=N, width=width, widths=(1, 8), features=chosen)
        np.testing.assert_array_equal(out, wanted())


def test_a_table_of_values() -> None:
    rng = np.random.default_rng(2)
    words, table = given()[0], rng.integers(0, 1 << 32, (4, N), np.uint64).astype(np.uint32)
    (out,) = emit_harness.agree(any_table, [words, table, np.zeros(N, np.uint32)], n=N)
    octets = np.ascontiguousarray(table.T).view(np.uint8)  # [N, 16]
    np.testing.assert_array_equal(
        out.view(np.uint8).reshape(N, 4), np.take_along_axis(octets, words.view(np.uint8).reshape(N, 4) & 15, 1)
    )


@pytest.mark.parametrize("width", [1, 4, 16, 64])
def test_c(width) -> None:
    for form, keywords in ((lanes, {}), (vectors, {"width": width})):
        np.testing.assert_array_equal(c_harness.agree(form, given(), n=N, **keywords)[0], wanted())


@pytest.mark.full
def test_wgsl() -> None:
    np.testing.assert_array_equal(wgsl_harness.agree(lanes, given(), widths=(32,), n=N)[0], wanted())


@pytest.mark.parametrize(
    ("triple", "cpu", "features", "width", "instruction"),
    [
        ("x86_64-unknown-linux-gnu", "znver4", {"avx2", "avx512f", "avx512vl", "avx512bw"}, 16, "vpshufb"),
        ("x86_64-unknown-linux-gnu", "haswell", {"avx2"}, 8, "vpshufb"),
        ("aarch64-unknown-linux-gnu", "cortex-a76", {"neon"}, 4, "tbl"),
    ],
)
def test_a_vector_is_one_shuffle(triple, cpu, features, width, instruction) -> None:
    target = CrossTarget(triple, cpu, frozenset(features))
    kernel_ir = trace(vectors, given(), n=width, width=width)
    text = assembly_for(target, emit(kernel_ir, target.at(width), "kernel"))
    assert text.count(f"\t{instruction}") == 1


def test_ptx_permutes_bytes() -> None:
    target = GpuTarget()
    text = ptx_of(emit_ptx(simt_form(trace(lanes, given(), n=N), 128), target, "kernel"), target)
    assert "prmt.b32" in text


def test_the_permutations_of_ptx_give_the_bytes() -> None:
    # what the expansion writes, on this CPU, with the instruction's meaning written out
    ctx = Context("prmt", CpuTarget("", 1), Rules({}, {}))
    octets = np.array(TABLE, np.int64).astype(np.uint8).view(np.uint32)
    result = prmt(ctx.typed(u32, 0), "%x", *(str(word) for word in octets))
    body = "\n".join(ctx.lines).replace("@llvm.nvvm.prmt", "@permute")
    module = f"{PERMUTE}\ndefine i32 @looked_up(i32 %x) {{\n{body}\nret i32 {result}\n}}"
    library = load_object(compile_module(module))
    function = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint32)(library.address("looked_up"))
    assert [function(int(word)) for word in given()[0]] == wanted().tolist()


PERMUTE = "\n".join(
    [
        "define internal i32 @permute(i32 %a, i32 %b, i32 %s) {",
        "%low = zext i32 %a to i64\n%wide = zext i32 %b to i64\n%high = shl i64 %wide, 32\n%both = or i64 %low, %high",
        *(
            f"%n{i} = lshr i32 %s, {4 * i}\n%m{i} = and i32 %n{i}, 7\n%p{i} = shl i32 %m{i}, 3\n%w{i} = zext i32 %p{i} to i64\n"
            f"%o{i} = lshr i64 %both, %w{i}\n%t{i} = trunc i64 %o{i} to i32\n%y{i} = and i32 %t{i}, 255\n"
            f"%z{i} = shl i32 %y{i}, {8 * i}"
            for i in range(4)
        ),
        "%r1 = or i32 %z0, %z1\n%r2 = or i32 %r1, %z2\n%r3 = or i32 %r2, %z3\nret i32 %r3\n}",
    ]
)


def test_what_is_no_table_is_refused() -> None:
    @kernel
    def short(k, words, out):
        for c in k.lanes(N):
            out[c] = k.byte_lookup(words[c], (1, 2, 3))

    with pytest.raises(KernelError, match="wanted 16 from -128 to 255"):
        trace(short, given())

    @kernel
    def signed(k, words, out):
        for c in k.lanes(N):
            out[c] = k.byte_lookup(words[c], TABLE)

    with pytest.raises(KernelError, match="wanted u32"):
        trace(signed, [np.zeros(N, np.int32), np.zeros(N, np.uint32)])

"""The instructions of quantized_matmul's inner loop on CPUs that need not be here, and its traffic with the stack."""

from __future__ import annotations

import pytest

from camshaft import ops
from camshaft.backends.cpu.cross import CrossTarget, assembly_for
from camshaft.backends.cpu.device import CpuDevice
from camshaft.dispatch.validate import node_of
from camshaft.emit.llvm import emit
from camshaft.lang.verify import verify
from camshaft.ops.launch import signature
from tests.support.assembly import instructions, longest_loop, vector_stack_accesses

ARM, X86 = "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"
AVX2 = frozenset({"sse2", "sse4.1", "avx2", "fma", "f16c"})
AVX512 = AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq", "avx512vnni"}
# name -> (target, lanes, the byte dot product)
CPUS = {
    "NEON": (CrossTarget(ARM, "cortex-a53", frozenset({"neon"})), 4, "smull"),
    "dotprod": (CrossTarget(ARM, "cortex-a76", frozenset({"neon", "dotprod"})), 4, "sdot"),
    "i8mm": (CrossTarget(ARM, "neoverse-n2", frozenset({"neon", "dotprod", "i8mm"})), 4, "usdot"),
    "AVX2": (CrossTarget(X86, "haswell", AVX2), 8, "vpmaddwd"),
    "AVX-VNNI": (CrossTarget(X86, "alderlake", AVX2 | {"avxvnni"}), 8, "vpdpbusd"),
    "AVX512-VNNI": (CrossTarget(X86, "znver4", AVX512), 16, "vpdpbusd"),
}


def inner_loop(name: str, sample_name: str) -> list[str]:
    target, lanes, _ = CPUS[name]
    op = ops.get("quantized_matmul")
    sample = next(s for s in op.samples() if s.name == sample_name)
    node, device = node_of(op, sample), CpuDevice(name, "simd", lanes, target.features, target.architecture)
    variant = next(v for v in op.variants if v.name == "tile")
    assert variant.supports(node, device) is None
    build = variant.build(node, device)
    (launch,) = build.launches
    made = signature(launch, node, build)
    traced = launch.kernel.trace(made.arrays, made.scalar_names, launch.constants, made.grid)
    verify(traced)
    return longest_loop(assembly_for(target, emit(traced, target.at(lanes), "kernel")))


@pytest.mark.parametrize("sample", ["Q4_0 1(1)x64x33 q8", "Q4_0 13(13)x128x16 q8", "Q8_0 13(13)x128x16 q8"])
@pytest.mark.parametrize("name", CPUS)
def test_the_byte_dot_product_is_the_cpus_own(name, sample) -> None:
    counts, wanted = instructions(inner_loop(name, sample)), CPUS[name][2]
    # 8 words of 16 rows, and a tile of many tokens has more; two halves each where products are 16-bit
    assert sum(n for word, n in counts.items() if word.startswith(wanted)) >= 8 * 16 // CPUS[name][1]
    others = {"sdot", "usdot", "smull", "vpmaddwd", "vpdpbusd"} - {wanted}
    assert not [word for word in counts if word.rstrip("2") in others]


@pytest.mark.parametrize("name", ["i8mm", "AVX-VNNI", "AVX512-VNNI"])
def test_one_token_stays_in_registers(name) -> None:
    assert not vector_stack_accesses(inner_loop(name, "Q4_0 1(1)x64x33 q8"))


# Many tokens: bounds just above what LLVM 22's scheduler makes of tiles that fit on paper. Where there is i8mm, its matrix unit
# takes them (ops/quantized_matmul/units.py).
SHARE = {"dotprod": 0.16, "i8mm": 0.16, "AVX-VNNI": 0.06, "AVX512-VNNI": 0.06}


@pytest.mark.parametrize("sample", ["Q4_0 13(13)x128x16 q8", "Q8_0 13(13)x128x16 q8"])
@pytest.mark.parametrize("name", SHARE)
def test_most_of_a_tile_stays_in_registers(name, sample) -> None:
    loop = inner_loop(name, sample)
    share = len(vector_stack_accesses(loop)) / len(loop)
    assert share <= SHARE[name], f"{share:.3f} of the loop's instructions"

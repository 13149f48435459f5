"""Every level of CPU features: the instruction that kernels of products are chosen for is in their inner loop, which goes to the
stack no more than is known of it. On CPUs that need not be here; what runs where is in docs/backends.md."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from camshaft import ops
from camshaft.backends.cpu.device import CpuDevice
from camshaft.emit.llvm.module import emit
from camshaft.emit.target import LEVELS, native_lanes
from camshaft.ops.kernels.launch import signature
from camshaft.validation.validate import node_of
from tests.support.compilers.assembly import instructions, loop_with, vector_stack_accesses
from tests.support.compilers.cross import CrossTarget, assembly_for
from tests.support.quick import each_value, quick_of
from tests.support.samples import samples

# level -> (LLVM's name of a CPU of it, its byte dot product, what adds products of f32)
CPUS = {
    "sse4": ("nehalem", "pmaddwd", "mulpd"),
    "avx2": ("haswell", "vpmaddwd", "vfmadd"),
    "avx-vnni": ("alderlake", "vpdpbusd", "vfmadd"),
    "avx512": ("skylake-avx512", "vpmaddwd", "vfmadd"),
    "avx512-vnni": ("cascadelake", "vpdpbusd", "vfmadd"),
    "avx512-bf16": ("znver4", "vpdpbusd", "vfmadd"),
    "amx": ("sapphirerapids", "vpdpbusd", "vfmadd"),
    "neon": ("cortex-a53", "smull", "fmla"),
    "neon-dotprod": ("cortex-a76", "sdot", "fmla"),
    "neon-i8mm": ("neoverse-v1", "usdot", "fmla"),
    "neon-bf16": ("neoverse-n2", "usdot", "fmla"),
}
DOTS = {dot for _, dot, _ in CPUS.values()} | {"vpmaddubsw", "pmaddubsw"}
# Levels that choose these kernels as the one before them does.
ALIKE = {"avx512-bf16", "amx", "neon-bf16"}
# (kernel, sample) -> level -> the most of the loop's instructions that may go to the stack, just above what LLVM 22 makes; 0
# where none is named. On Zen 4 code without any, scheduled otherwise, was no faster (docs/performance/). SSE4's f32 is wide.
ONE, MANY = "1(1)x64x33 q8", "13(13)x128x16 q8"
KERNELS: dict[tuple[str, str, str], dict[str, float]] = {
    ("quantized_matmul", "tile", f"Q4_0 {ONE}"): {"sse4": 0.2, "avx2": 0.1, "neon": 0.1, "neon-dotprod": 0.05},
    ("quantized_matmul", "tile", f"Q8_0 {ONE}"): {"sse4": 0.1, "neon": 0.05, "neon-dotprod": 0.05},
    ("quantized_matmul", "tile", f"Q4_0 {MANY}"): {
        "sse4": 0.2, "avx2": 0.1, "avx512": 0.05, "avx512-vnni": 0.15, "neon": 0.2, "neon-dotprod": 0.2, "neon-i8mm": 0.15,
    },
    ("quantized_matmul", "tile", f"Q8_0 {MANY}"): {
        "sse4": 0.2, "avx2": 0.15, "avx512": 0.05, "avx512-vnni": 0.15, "neon": 0.15, "neon-dotprod": 0.25, "neon-i8mm": 0.16,
    },
    ("quantized_matmul", "tile", "Q4_K 13(13)x512x16 q8"): {
        "sse4": 0.25, "avx2": 0.1, "avx-vnni": 0.05, "avx512": 0.05, "avx512-vnni": 0.15, "neon": 0.2, "neon-dotprod": 0.2,
        "neon-i8mm": 0.15,
    },
    ("matmul", "blocked", "()13x7x32()"): {"sse4": 0.25},
    ("matmul", "blocked", "bf16 32x64x32 transposed to bf16"): {"sse4": 0.25},
    ("attention", "split_keys", "one token at 300"): {"sse4": 0.2, "neon": 0.05},
}  # fmt: skip
# Behind `full`: Q8_0 is Q4_0 with fewer instructions, a product that is rounded at its end is the plain one before, and
# attention's loop has no instruction of one level alone.
FEWER = ("Q8_0", "Q4_0 13", "bf16 32x64x32 transposed to", "one token at")
# level, op, variant and sample of a matrix unit -> how often each instruction is in a step of its loop
UNITS = {
    ("amx", "quantized_matmul", "unpacked_tiles", "Q8_0 65(65)x2080x70 tiles"): {
        "tdpbf16ps": 4,
        "tileloadd": 2,
        "tileloaddt1": 2,
        "tilestored": 0,
    },
    ("amx", "matmul", "matrix_unit", "bf16 32x196x17 to bf16"): {"tdpbf16ps": 2, "tileloadd": 3, "tilestored": 0},
    ("neon-i8mm", "quantized_matmul", "matrix_unit", "Q4_0 29(20)x192x17 q8"): {"usmmla": 32},
    ("neon-i8mm", "quantized_matmul", "matrix_unit", "Q8_0 29(20)x192x17 q8"): {"usmmla": 32},
    ("neon-i8mm", "quantized_matmul", "matrix_unit", "Q4_K 29(20)x768x17 q8"): {"usmmla": 32},
    ("neon-bf16", "matmul", "matrix_unit", "bf16 32x196x17 to bf16"): {"bfmmla": 16},
}


# Format of many tokens -> 16-bit sums of a block that are widened, and those that start with a word's products, of two vectors
# and each of four tokens: none with staged codes that are signed
INT16_SUMS = {"Q4_0": (1, 1), "Q5_0": (2, 2), "Q4_K": (1, 1), "Q5_K": (2, 2), "Q6_K": (2, 0)}


@pytest.mark.parametrize("name", quick_of(INT16_SUMS, ["Q4_0", "Q6_K"]))
def test_avx2_widens_as_few_sums_as_fit_16_bits(name) -> None:
    k = 768 if name.endswith("_K") else 192
    loop = loop_with(text_of("avx2", "quantized_matmul", "int16_sums", f"{name} 29(20)x{k}x17 q8"), "vpmaddubsw")
    counts, words, (widened, first) = instructions(loop), 8, INT16_SUMS[name]
    assert (counts["vpmaddubsw"], counts["vpmaddwd"]) == (8 * words, 8 * widened)
    assert counts["vpaddw"] == 8 * (words - first)
    broadcasts = counts["vpbroadcastd"] + counts["vbroadcastss"]
    assert broadcasts <= 4 * (words + 3)  # codes, scale and sums, once for both vectors
    spilled = [
        line for line in vector_stack_accesses(loop) if "broadcast" not in line
    ]  # unpacked codes and staged tokens lie there
    assert len(spilled) / len(loop) <= 0.3


def test_avx2_multiplies_staged_codes_of_8_bits_as_16() -> None:
    loop = loop_with(text_of("avx2", "quantized_matmul", "int16_sums", "Q8_0 29(20)x192x17 q8"), "vpmaddwd")
    counts = instructions(loop)
    assert (counts["vpmaddwd"], counts["vpaddd"], counts["vpmaddubsw"]) == (128, 120, 0)
    assert counts["vpbroadcastd"] + counts["vbroadcastss"] <= 4 * (16 + 1)  # pairs of codes, and scales


# Level -> its dot product of pairs of bf16: AMX's CPUs have AVX-512's beside it
PAIRS = {"avx512-bf16": "vdpbf16ps", "amx": "vdpbf16ps", "neon-bf16": "bfdot"}


@functools.cache
def text_of(level: str, op_name: str, variant_name: str, sample_name: str) -> str:
    """The assembly of all of a node's launches for a level."""
    row, op = LEVELS[level], ops.get(op_name)
    target = CrossTarget(f"{row.architecture}-unknown-linux-gnu", CPUS[level][0], row.features)
    device = CpuDevice(level, "simd", native_lanes(row.features), row.features, row.architecture)
    node = node_of(op, next(s for s in samples(op_name) if s.name == sample_name))
    variant = next(v for v in op.variants if v.name == variant_name)
    assert variant.supports(node, device) is None
    build, texts = variant.build(node, device), []
    for i, launch in enumerate(build.launches):
        made = signature(launch, node, build)
        text = emit(made.request(launch).trace(), target.at(launch.lanes or device.lanes), f"kernel{i}")
        texts.append(assembly_for(target, text).replace(".LBB", f".L{i}_"))
    return "\n".join(texts)


def rows() -> Iterator[object]:
    for (op, variant, sample), shares in KERNELS.items():
        for level in CPUS:
            if op == "matmul" or level not in ALIKE:
                few = sample.startswith(FEWER)
                marks = pytest.mark.full if few else ()
                share = shares.get(level, 0.0)
                yield pytest.param(level, op, variant, sample, share, id=f"{level}-{op}-{sample}", marks=marks)


@pytest.mark.parametrize(("level", "op", "variant", "sample", "share"), list(rows()))
def test_the_inner_loop_is_the_levels_own(level, op, variant, sample, share) -> None:
    word = CPUS[level][1 if op == "quantized_matmul" else 2]
    loop = loop_with(text_of(level, op, variant, sample), word)
    counts = instructions(loop)
    assert sum(n for name, n in counts.items() if name.startswith(word)) >= 8
    if op == "quantized_matmul":
        others = DOTS - {word} - ({word.replace("wd", "ubsw")} if sample.startswith("Q4") else set())
        assert not [name for name in counts if name.rstrip("2") in others]
    found = len(vector_stack_accesses(loop)) / len(loop)
    assert found <= share, f"{found:.3f} of the loop's {len(loop)} instructions go to the stack"


@pytest.mark.parametrize(
    "sample",
    quick_of(["Q4_0 29(20)x192x17 q8", "Q8_0 29(20)x192x17 q8", "Q6_K 29(20)x768x17 q8"], ["Q6_K 29(20)x768x17 q8"]),
)
def test_tokens_of_an_extent_have_no_pointers_of_their_own(sample) -> None:
    loop = loop_with(text_of("avx512-bf16", "quantized_matmul", "tile", sample), "vpdpbusd")
    dots = instructions(loop)["vpdpbusd"]
    assert dots in (96, 128)  # 8 words of 12 or 16 tokens
    assert not [line for line in loop if "(%rsp" in line and line.startswith("mov")]
    assert len(loop) < 2.4 * dots


@pytest.mark.parametrize(("level", "sample"), each_value(list(PAIRS), ["bf16 32x64x32", "bf16 10x1034x70 transposed"]))
def test_pairs_of_bf16_are_multiplied_at_once(level, sample) -> None:
    loop = loop_with(text_of(level, "matmul", "bf16_dot", sample), PAIRS[level])
    assert instructions(loop)[PAIRS[level]] >= 4
    assert not vector_stack_accesses(loop)


@pytest.mark.parametrize(
    ("level", "op", "variant", "sample"), quick_of(UNITS, [u for u in UNITS if not u[3].startswith("Q8_0 29")])
)
def test_a_matrix_unit_keeps_its_sums(level, op, variant, sample) -> None:
    wanted = UNITS[level, op, variant, sample]
    loop = loop_with(text_of(level, op, variant, sample), next(iter(wanted)))
    counts = instructions(loop)
    assert {name: counts[name] for name in wanted} == wanted
    assert not vector_stack_accesses(loop)


def test_a_level_is_met_by_its_cpu_or_a_lesser_one() -> None:
    assert set(CPUS) == set(LEVELS)
    assert all(LEVELS[name].features for name in CPUS)

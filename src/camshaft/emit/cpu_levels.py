"""CPU feature levels: names for sets of features that CPUs of a kind have together.

Kernels test for single features (emit/llvm/dots/dot4.py and others). CAMSHAFT_CPU_FEATURES restricts a machine to the features
of a level.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuLevel:
    """`features`: LLVM's names of the level's features, as far as kernels test for them. `registers`: the number of vector
    registers."""

    name: str
    architecture: str
    features: frozenset[str]
    registers: int


_SSE4 = frozenset({"sse2", "sse4.1"})
_AVX2 = _SSE4 | {"avx", "avx2", "fma", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_VNNI = _AVX512 | {"avx512vnni"}
_BF16 = _VNNI | {"avx512bf16"}
_AMX = _BF16 | {"amx-tile", "amx-int8", "amx-bf16"}
_NEON = frozenset({"neon"})
_DOTPROD = _NEON | {"dotprod"}
_I8MM = _DOTPROD | {"i8mm"}

LEVELS = {
    level.name: level
    for level in (
        CpuLevel("sse4", "x86_64", _SSE4, 16),
        CpuLevel("avx2", "x86_64", _AVX2, 16),
        CpuLevel("avx-vnni", "x86_64", _AVX2 | {"avxvnni"}, 16),
        CpuLevel("avx512", "x86_64", _AVX512, 32),
        CpuLevel("avx512-vnni", "x86_64", _VNNI, 32),
        CpuLevel("avx512-bf16", "x86_64", _BF16, 32),
        CpuLevel("amx", "x86_64", _AMX, 32),
        CpuLevel("neon", "aarch64", _NEON, 32),
        CpuLevel("neon-dotprod", "aarch64", _DOTPROD, 32),
        CpuLevel("neon-i8mm", "aarch64", _I8MM, 32),
        CpuLevel("neon-bf16", "aarch64", _I8MM | {"bf16"}, 32),
    )
}

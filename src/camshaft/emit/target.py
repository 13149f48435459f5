"""CpuTarget and GpuTarget: what the LLVM emitter may assume of a machine. LEVELS: names for sets of CPU features.

Kernels test for single features (emit/llvm/expanded/dots.py). CAMSHAFT_CPU_FEATURES restricts a machine to the features of a
level.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuTarget:
    """`lanes`: the lane width of programs in 32-bit elements (1: scalar). `features`: LLVM's names of the machine's features."""

    architecture: str
    lanes: int
    features: frozenset[str] = frozenset()

    @property
    def vector_bits(self) -> int:
        """The widest register, in bits."""
        if "avx512f" in self.features and "avx512vl" in self.features:
            return 512
        return 256 if "avx2" in self.features else 128

    @property
    def column(self) -> str:
        """The target's column of the instruction table."""
        return "llvm"

    @property
    def has_bf16(self) -> bool:
        """Whether an instruction narrows f32 to bf16."""
        return "avx512bf16" in self.features

    @property
    def flushes_bf16(self) -> bool:
        """Whether that instruction makes 0 of subnormals: AVX-512's does, whatever MXCSR says."""
        return self.has_bf16 and self._is_x86

    @property
    def has_f16(self) -> bool:
        """Whether instructions convert between f16 and f32."""
        return self._is_arm or not self.features.isdisjoint({"f16c", "avx512f", "zfhmin", "zfh"})

    @property
    def has_scale(self) -> bool:
        """Whether an instruction multiplies vectors by powers of two."""
        return self._is_x86 and {"avx512f", "avx512vl"} <= self.features

    @property
    def lacks(self) -> frozenset[str]:
        """Instructions in the table's column that this machine lacks; they are expanded."""
        return frozenset() if self.has_scale else frozenset({"scale"})

    @property
    def stream_nbytes(self) -> int:
        """Bytes of a cache line that nontemporal stores fill; 0 if the emitter has no such store for the machine."""
        return 64 if self._is_x86 and self.vector_bits >= 256 else 0

    @property
    def has_fma(self) -> bool:
        """Whether an instruction multiplies and adds with one rounding."""
        return not self._is_x86 or not self.features.isdisjoint({"fma", "fma4", "avx512f"})

    @property
    def _is_arm(self) -> bool:
        return self.architecture in ("aarch64", "arm64")

    @property
    def _is_x86(self) -> bool:
        return self.architecture in ("x86_64", "amd64")

    def key(self) -> str:
        """A text for cache keys, which have the machine's feature string beside it."""
        return f"{self.architecture}/{self.lanes}"


@dataclass(frozen=True)
class GpuTarget(CpuTarget):
    """An NVIDIA GPU of compute capability 8.0 or newer: LLVM's name of its processor and the version of PTX to write.

    `lanes` is 1 because code is written for a single thread; a kernel's SIMT form has the size of its workgroup.
    """

    architecture: str = "nvptx64"
    lanes: int = 1
    processor: str = "sm_80"
    ptx: int = 80

    @property
    def column(self) -> str:
        return "ptx"

    @property
    def has_bf16(self) -> bool:
        return True

    @property
    def has_f16(self) -> bool:
        return True

    def key(self) -> str:
        return f"{self.architecture}/{self.processor}/{self.ptx}"


# PTX for a processor runs on later ones too, except for names with an 'a'. CUDA 12.0 brought PTX 8.0, CUDA 12.7 PTX 8.6.
GPU_TARGETS = {
    "sm_80": GpuTarget(processor="sm_80", ptx=80),
    "sm_90a": GpuTarget(processor="sm_90a", ptx=80),
    "sm_100": GpuTarget(processor="sm_100", ptx=86),
}


def native_lanes(features: frozenset[str]) -> int:
    """AVX-512: 16, AVX2: 8, else 4 (SSE2, NEON)."""
    return CpuTarget("", 1, features).vector_bits // 32


# --- levels of CPU features ------------------------------------------------------------------------------------------


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

# The features of a CPU that multiplies tiles of bf16 (AMX).
BF16_TILES = frozenset({"amx-tile", "amx-bf16"})
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

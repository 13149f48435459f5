"""CpuTarget and GpuTarget: what the LLVM emitter may assume about the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CpuTarget:
    """`lanes`: programs' lane width in 32-bit elements (1 is scalar); `features`: names that the machine has."""

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
        """A text for cache keys; the feature string itself is in the host target's."""
        return f"{self.architecture}/{self.lanes}"


@dataclass(frozen=True)
class GpuTarget(CpuTarget):
    """An NVIDIA GPU of compute capability 8.0 or newer: LLVM's name of its processor and the version of PTX to write.

    `lanes` is 1, as code is written for a single thread; a kernel's SIMT form has the size of its workgroup.
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


# PTX for one processor runs on later ones too, for a name with an 'a' on that one alone. PTX 8.0 is of CUDA 12.0, 8.6 of 12.7.
GPU_TARGETS = {
    "sm_80": GpuTarget(processor="sm_80", ptx=80),
    "sm_90a": GpuTarget(processor="sm_90a", ptx=80),
    "sm_100": GpuTarget(processor="sm_100", ptx=86),
}


def native_lanes(features: frozenset[str]) -> int:
    """AVX-512: 16, AVX2: 8, else 4 (SSE2, NEON)."""
    return CpuTarget("", 1, features).vector_bits // 32

"""CpuTarget: what the LLVM emitter may assume of a CPU. Made by backends/cpu from LLVM's feature string."""

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
    def has_f16(self) -> bool:
        """Whether instructions convert between f16 and f32."""
        return self._is_arm or not self.features.isdisjoint({"f16c", "avx512f", "zfhmin", "zfh"})

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
        """A spelling for cache keys; the feature string itself is in the host target's."""
        return f"{self.architecture}/{self.lanes}"


def native_lanes(features: frozenset[str]) -> int:
    """AVX-512: 16, AVX2: 8, else 4 (SSE2, NEON)."""
    return CpuTarget("", 1, features).vector_bits // 32

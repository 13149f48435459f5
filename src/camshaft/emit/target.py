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

    def key(self) -> str:
        """A spelling for cache keys; the feature string itself is in the host target's."""
        return f"{self.architecture}/{self.lanes}"


def native_lanes(features: frozenset[str]) -> int:
    """AVX-512: 16, AVX2: 8, else 4 (SSE2, NEON)."""
    return CpuTarget("", 1, features).vector_bits // 32

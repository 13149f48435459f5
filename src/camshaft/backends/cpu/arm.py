"""What LLVM does not find out of an AArch64 host (22.1 names none of these): its dot and matrix products.

Linux says it in two words of bits, macOS by names.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_HWCAP, _HWCAP2 = 16, 26
# feature -> (word of bits, bit): the kernel's asm/hwcap.h
_BITS = {"dotprod": (0, 20), "i8mm": (1, 13), "bf16": (1, 14)}
_NAMES = {
    "dotprod": b"hw.optional.arm.FEAT_DotProd",
    "i8mm": b"hw.optional.arm.FEAT_I8MM",
    "bf16": b"hw.optional.arm.FEAT_BF16",
}


def features_of(hwcap: int, hwcap2: int) -> frozenset[str]:
    """LLVM's names of the features in Linux's words of bits."""
    words = hwcap, hwcap2
    return frozenset(name for name, (word, bit) in _BITS.items() if words[word] >> bit & 1)


def host_features() -> frozenset[str]:
    """Those of this machine; none where it is no AArch64, or its system does not tell."""
    if platform.machine().lower() not in ("aarch64", "arm64"):
        return frozenset()
    if sys.platform == "darwin":
        return frozenset(name for name, asked in _NAMES.items() if _macos_says(asked))
    if sys.platform != "linux":
        return frozenset()
    ask = ctypes.CDLL(None).getauxval
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return features_of(ask(_HWCAP), ask(_HWCAP2))


def _macos_says(name: bytes) -> bool:
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    failed = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return not failed and value.value == 1

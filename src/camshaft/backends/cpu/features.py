"""CPU features that kernels may use: those that LLVM or the OS reports, minus those that the OS or CAMSHAFT_CPU_FEATURES denies.

Other modules use `host_target` in compile.py.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable

from camshaft.emit.target import LEVELS, CpuLevel
from camshaft.errors import SettingError

# Vector extensions of x86 beyond SSE: by prefix, and others that imply AVX
_PREFIXES = ("avx", "amx-")
_WITH_AVX = frozenset({"fma", "fma4", "f16c", "xop", "vaes", "vpclmulqdq", "sha512", "sm3", "sm4"})
# x86-64: arch_prctl's syscall number, its request for permission to use a state component, and AMX's component (asm/prctl.h)
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18

_HWCAP, _HWCAP2 = 16, 26
# feature -> (index of the hwcap word, bit), from Linux's asm/hwcap.h
_BITS = {"dotprod": (0, 20), "i8mm": (1, 13), "bf16": (1, 14)}
_NAMES = {
    "dotprod": b"hw.optional.arm.FEAT_DotProd",
    "i8mm": b"hw.optional.arm.FEAT_I8MM",
    "bf16": b"hw.optional.arm.FEAT_BF16",
}


def features_of(hwcap: int, hwcap2: int) -> frozenset[str]:
    """Returns LLVM's names of the features in Linux's AT_HWCAP and AT_HWCAP2 bit masks."""
    words = hwcap, hwcap2
    return frozenset(name for name, (word, bit) in _BITS.items() if words[word] >> bit & 1)


def host_features() -> frozenset[str]:
    """Returns this machine's AArch64 features. Empty on other architectures and on systems without a query for them."""
    if platform.machine().lower() not in ("aarch64", "arm64"):
        return frozenset()
    if sys.platform == "darwin":
        return frozenset(name for name, asked in _NAMES.items() if _macos_has(asked))
    if sys.platform != "linux":
        return frozenset()
    ask = ctypes.CDLL(None).getauxval
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return features_of(ask(_HWCAP), ask(_HWCAP2))


def _macos_has(name: bytes) -> bool:
    value, size = ctypes.c_int(0), ctypes.c_size_t(4)
    failed = ctypes.CDLL(None).sysctlbyname(name, ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return not failed and value.value == 1


def usable(found: str, level: str | None, ask: Callable[[], bool] | None = None) -> str:
    """Restricts LLVM's feature string `found` ("+avx2,-amx-tile,...") to what kernels may use, up to a level of emit/target.py.

    `ask` requests the OS's permission for AMX tiles (default: `permitted`). SettingError if this CPU is below the level.
    """
    flags = [part for part in found.split(",") if part]
    if level is not None:
        flags = _cut(flags, LEVELS[level])
    if "+amx-tile" in flags and not (ask or permitted)():
        flags = [f"-{part[1:]}" if part[1:].startswith("amx-") else part for part in flags]
    return ",".join(flags)


def names(features: str) -> frozenset[str]:
    """Returns the features that a feature string enables."""
    return frozenset(part[1:] for part in features.split(",") if part.startswith("+"))


def _cut(flags: list[str], level: CpuLevel) -> list[str]:
    there = {part[1:] for part in flags if part.startswith("+")}
    if lacking := sorted(level.features - there):
        known = [name for name, other in LEVELS.items() if other.features <= there]
        raise SettingError(
            f"CAMSHAFT_CPU_FEATURES={level.name}: this CPU lacks {', '.join(lacking)}; wanted one of {', '.join(known)}"
        )
    above = frozenset[str]().union(*(x.features for x in LEVELS.values() if x.architecture == level.architecture))
    changed = [f"-{part[1:]}" if _is_above(part[1:], above, level) else part for part in flags]
    # LLVM's CPU name implies features that the string may not list
    return changed + [f"-{name}" for name in sorted(above - level.features - there)]


def _is_above(name: str, above: frozenset[str], level: CpuLevel) -> bool:
    return name not in level.features and (name in above or name.startswith(_PREFIXES) or name in _WITH_AVX)


def permitted() -> bool:
    """Requests permission to use AMX tiles for this process, its threads and children. Returns whether the OS grants it.

    Linux requires the request (Documentation/arch/x86/xstate.rst). On other systems this returns False.
    """
    if sys.platform != "linux" or platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    call = ctypes.CDLL(None).syscall
    call.restype, call.argtypes = ctypes.c_long, [ctypes.c_long] * 3
    return bool(call(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA) == 0)

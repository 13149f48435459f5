"""What each of several processes does that start at once on one cache: kernels by name, two of them alike, and evidence."""

from __future__ import annotations

import sys

import numpy as np

from camshaft.backends.cpu import device
from camshaft.validation.cases import VariantCase
from camshaft.validation.evidence import ValidationResult, validation_cache

N_KERNELS = 12


def adds(constant: int, names: tuple[str, ...]) -> list[int]:
    """What kernels of those names, each x + constant, make of the numbers 0, 1, ..."""

    def text(symbol: str) -> str:
        return f"""
define void @{symbol}(ptr %args, i64 %first, i64 %last) {{
  %x = load i64, ptr %args
  %y = add i64 %x, {constant}
  store i64 %y, ptr %args
  ret void
}}
"""

    results = []
    for number, name in enumerate(names):
        place = np.array([number], np.int64)
        device.native_function(name, f"{name} adds {constant}", text)(place.ctypes.data, 0, 1)
        results.append(int(place[0]))
    return results


def main(me: str) -> None:
    """Prints the results, and what was compiled."""
    results = [adds(constant, ("one", "another")) for constant in range(N_KERNELS)]
    assert results == [[constant, constant + 1] for constant in range(N_KERNELS)], results
    case = VariantCase("copy", me, "simd", "camshaft.ops.elementwise.copy")
    validation_cache().add({case: ValidationResult("copy", me, "simd", "proved")})
    print(device.counts.compiled, device.counts.loaded)


if __name__ == "__main__":
    main(sys.argv[1])

"""Kernel IR to C11 with GCC's vectors, one lane wide, readable beside the kernel. Between lang/ and backends/c/.

The ABI is that of emit/llvm.py: `void NAME(const int64_t *args, int64_t first, int64_t last)` runs programs first..last; args
holds the arrays' addresses, then for each run-time scalar the address of its i64. Meant for GCC and Clang with
-fwrapv -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-strict-aliasing (backends/c/compilers.py).
"""

from __future__ import annotations

import re
from pathlib import Path

from camshaft.emit.c_body import BodyWriter
from camshaft.emit.c_family_source import formula
from camshaft.emit.c_library import memory_dtype, scalar_type
from camshaft.lang import ir

_HEAD = """#include <stdint.h>
#include <string.h>

#pragma GCC diagnostic ignored "-Wpsabi"
#if defined(__FMA__) || defined(__AVX512F__) || defined(__ARM_FEATURE_FMA)
#define CAMSHAFT_FMA
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define CAMSHAFT_VNNI
#endif
"""


def emit(kernel: ir.KernelIR, symbol: str) -> str:
    """The C text of a kernel: one exported function `symbol`. KernelError for what C cannot have."""
    body = BodyWriter(kernel)
    body.emit()
    arrays = [(array, body.array_names[array]) for array in kernel.arrays]
    programs = [f"program{i}" for i in range(len(kernel.grid))]
    parameters = [f"{_pointer(array)}restrict {name}" for array, name in arrays]
    parameters += [f"int64_t {name}" for name in (*body.scalar_names, *programs)]
    said = "\n".join(body.lines)
    given = [*(name for _, name in arrays), *body.scalar_names, *programs]
    unused = [f"    (void){name};" for name in given if not re.search(rf"\b{name}\b", said)]
    text = [
        f"// {kernel.name} ({Path(kernel.source_file).name})",
        *(f"// {line}" for line in formula(kernel.source_file, kernel.name)),
        _HEAD,
        *body.lib.text(),
        "",
        f"static void program({', '.join(parameters)})",
        "{",
        *unused,
        *body.lines,
        "}",
        "",
        *_entry(kernel, arrays, body.scalar_names, symbol),
    ]
    return "\n".join(text) + "\n"


def _pointer(array: ir.Array) -> str:
    const = "" if array.writable else "const "
    return f"{const}{scalar_type(memory_dtype(array.dtype))} *"


def _entry(kernel: ir.KernelIR, arrays: list[tuple[ir.Array, str]], scalars: list[str], symbol: str) -> list[str]:
    """Unpacks the argument block, then loops over the programs; the last grid axis runs fastest."""
    lines = [f"void {symbol}(const int64_t *args, int64_t first, int64_t last);", ""]
    lines += [f"void {symbol}(const int64_t *args, int64_t first, int64_t last)", "{"]
    for i, (array, name) in enumerate(arrays):
        lines.append(f"    {_pointer(array)}{name} = ({_pointer(array).strip()})(intptr_t)args[{i}];")
    for i, name in enumerate(scalars):
        lines.append(f"    const int64_t {name} = *(const int64_t *)(intptr_t)args[{len(arrays) + i}];")
    lines.append("    for (int64_t linear = first; linear < last; linear++) {")
    lines.append("        int64_t rest = linear;")
    for axis in range(len(kernel.grid) - 1, 0, -1):
        size = _size(kernel, kernel.grid[axis], scalars)
        lines.append(f"        const int64_t program{axis} = rest % {size};")
        lines.append(f"        rest /= {size};")
    programs = ["rest", *(f"program{i}" for i in range(1, len(kernel.grid)))]
    given = [*(name for _, name in arrays), *scalars, *programs]
    return [*lines, f"        program({', '.join(given)});", "    }", "}"]


def _size(kernel: ir.KernelIR, dim: ir.GridDim, scalars: list[str]) -> str:
    """The number of programs along an axis."""
    if dim.scalar is None:
        return str(dim.size)
    name = scalars[kernel.scalars.index(dim.scalar)]
    return name if dim.divisor == 1 else f"(({name} + {dim.divisor - 1}) / {dim.divisor})"

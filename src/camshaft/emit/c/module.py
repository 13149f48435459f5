"""Kernel IR to C11 with GCC's vectors, one lane wide, readable beside the kernel.

The ABI is that of module.py: `void NAME(const int64_t *args, int64_t first, int64_t last)` runs programs first..last; args
holds the arrays' addresses, then for each run-time scalar the address of its i64. Meant for GCC and Clang with
-fwrapv -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-strict-aliasing (backends/c/compilers.py).
"""

from __future__ import annotations

import re
from math import prod

from camshaft.emit.c.library import Form, memory_dtype, scalar_type
from camshaft.emit.c.values import CValues, form_of
from camshaft.emit.c_family.text import Text
from camshaft.lang import ir
from camshaft.lang.expand.functions import expand_functions
from camshaft.lang.expand.tiles import expand_tiles


class CEmitter(CValues):
    """Writes a kernel's body for one lane."""

    def emit(self) -> list[str]:
        """The body's lines."""
        for array in self.scratch:
            element = scalar_type(memory_dtype(array.dtype))
            self.write_line(f"{element} {self.array_names[array]}[{prod(array.shape)}] __attribute__((aligned(64)));")
        return super().emit()

    def let(self, value: ir.Value, text: Text) -> None:
        """Writes a constant of the value's name, of a vector's type where it is one."""
        name = self.names.new(self.wanted.get(value, self._plain_name(value)))
        words = {"name": name, "type": self.lib.type_of(form_of(value)), "value": text.code}
        self.write_line(self.dialect.constant.format(**words), value.line)
        self.texts[value] = Text(name)

    def statement_varnew(self, item: ir.VarNew) -> None:
        var = item.var
        init = self.spread(self.operand(var.init), var.init, Form(var.dtype, var.width))
        name = self.var_names[var] = self.names.new(self.wanted.get(var, "var"))
        words = {"name": name, "type": self.lib.type_of(Form(var.dtype, var.width)), "value": init.code}
        self.write_line(self.dialect.variable.format(**words), item.line)
        if not any(value.op == "var_get" and value.attr is var for value in self.uses.count):
            self.write_line(f"(void){name};")  # set, and never read

    def statement_varset(self, item: ir.VarSet) -> None:
        form = Form(item.var.dtype, item.var.width)
        if form.is_vector and item.value.width <= 1:
            text = self.spread(self.operand(item.value), item.value, form)
            self.flush(frozenset({item.var}))
            self.write_line(f"{self.var_names[item.var]} = {text.code};", item.line)
        else:
            super().statement_varset(item)

    def statement_lanes(self, item: ir.Lanes) -> None:
        """There is one lane: a loop."""
        self.loop(item, 1)

    def statement_prefetch(self, item: ir.Prefetch) -> None:
        at = self.linear(item.array, item.indices)
        self.write_line(f"__builtin_prefetch({self.address(item.array, at).code}, 0, 3);", item.line)


_HEAD = """#include <stdint.h>
#include <string.h>

// Vectors stay inside this file; which helpers are called depends on the compiler.
#pragma GCC diagnostic ignored "-Wpsabi"
#pragma GCC diagnostic ignored "-Wunused-function"
#if defined(__FMA__) || defined(__AVX512F__) || defined(__ARM_FEATURE_FMA)
#define CAMSHAFT_FMA
#endif
#ifdef __has_builtin
#if __has_builtin(__builtin_elementwise_fma)
#define CAMSHAFT_ELEMENTWISE_FMA
#endif
#endif
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define CAMSHAFT_VNNI
#endif
"""


def emit(kernel: ir.KernelIR, symbol: str) -> str:
    """The C text of a kernel: one exported function `symbol`. KernelError for what C cannot have."""
    kernel = expand_functions(expand_tiles(kernel, 1), "c")
    body = CEmitter(kernel)
    lines = body.emit()
    arrays = [(array, body.array_names[array]) for array in kernel.arrays]
    parameters = [f"{_pointer(array)}restrict {name}" for array, name in arrays]
    parameters += [f"int64_t {name}" for name in (*body.scalar_names, *body.program_names)]
    said = "\n".join(line for line in lines if not line.lstrip().startswith("//"))
    given = [*(name for _, name in arrays), *body.scalar_names, *body.program_names]
    unused = [f"    (void){name};" for name in given if not re.search(rf"\b{name}\b", said)]
    text = [
        *body.heading(),
        _HEAD,
        *body.lib.text(),
        "",
        f"static void program({', '.join(parameters)})",
        "{",
        *unused,
        *lines,
        "}",
        "",
        *_entry(kernel, body, arrays, symbol),
    ]
    return "\n".join(text) + "\n"


def _pointer(array: ir.Array) -> str:
    const = "" if array.writable else "const "
    return f"{const}{scalar_type(memory_dtype(array.dtype))} *"


def _entry(kernel: ir.KernelIR, body: CEmitter, arrays: list[tuple[ir.Array, str]], symbol: str) -> list[str]:
    """Unpacks the argument block, then loops over the programs; the last grid axis runs fastest."""
    lines = [f"void {symbol}(const int64_t *args, int64_t first, int64_t last);", ""]
    lines += [f"void {symbol}(const int64_t *args, int64_t first, int64_t last)", "{"]
    for i, (array, name) in enumerate(arrays):
        lines.append(f"    {_pointer(array)}{name} = ({_pointer(array).strip()})(intptr_t)args[{i}];")
    for i, name in enumerate(body.scalar_names):
        lines.append(f"    const int64_t {name} = *(const int64_t *)(intptr_t)args[{len(arrays) + i}];")
    lines += ["    for (int64_t linear = first; linear < last; linear++) {", "        int64_t rest = linear;"]
    for axis in range(len(kernel.grid) - 1, 0, -1):
        size = _size(kernel, body, kernel.grid[axis])
        lines.append(f"        const int64_t {body.program_names[axis]} = rest % {size};")
        lines.append(f"        rest /= {size};")
    programs = ["rest", *body.program_names[1:]]
    given = [*(name for _, name in arrays), *body.scalar_names, *programs]
    unread = [] if kernel.arrays or kernel.scalars else ["    (void)args;"]
    return [*lines, f"        program({', '.join(given)});", "    }", *unread, "}"]


def _size(kernel: ir.KernelIR, body: CEmitter, dim: ir.GridDim) -> str:
    """The number of programs along an axis."""
    if dim.scalar is None:
        return str(dim.size)
    name = body.scalar_names[kernel.scalars.index(dim.scalar)]
    return name if dim.divisor == 1 else f"(({name} + {dim.divisor - 1}) / {dim.divisor})"

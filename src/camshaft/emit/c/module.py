"""Kernel IR to C11 with GCC's vectors, one lane wide, with the kernel's source lines as comments.

The ABI is that of emit/llvm/module.py: `void NAME(const int64_t *args, int64_t first, int64_t last)` runs programs first..last.
`args` has the arrays' addresses, then for each run-time scalar the address of its i64. The text is for GCC and Clang with
-fwrapv -ffp-contract=fast -fno-math-errno -fno-trapping-math -fno-strict-aliasing (backends/c/compilers.py).
"""

from __future__ import annotations

import re
from math import prod

from camshaft.emit.c import memory, values
from camshaft.emit.c.library import Form, memory_dtype, scalar_type
from camshaft.emit.c.values import ZERO, CContext, spread
from camshaft.emit.c_family import statements
from camshaft.emit.c_family.context import Dialect
from camshaft.emit.c_family.values import flush, linear, operand
from camshaft.lang import ir
from camshaft.lang.expand.functions import expand_functions
from camshaft.lang.expand.tiles import expand_tiles

_UNKNOWN_ZERO = (f"    int64_t {ZERO} = 0;", f'    __asm__("" : "+r"({ZERO}));')


def _var_new(ctx: CContext, item: ir.VarNew) -> None:
    var = item.var
    form = Form(var.dtype, var.width)
    init = spread(ctx, operand(ctx, var.init), var.init, form)
    name = ctx.var_names[var] = ctx.names.new(ctx.source_names.get(var, "var"))
    ctx.write_line(C11.variable.format(name=name, type=ctx.lib.type_of(form), value=init.code), item.line)
    if not any(value.op == "var_get" and value.attr is var for value in ctx.uses.count):
        ctx.write_line(f"(void){name};")  # set, and never read


def _var_set(ctx: CContext, item: ir.VarSet) -> None:
    form = Form(item.var.dtype, item.var.width)
    if form.is_vector and item.value.width <= 1:
        text = spread(ctx, operand(ctx, item.value), item.value, form)
        flush(ctx, frozenset({item.var}))
        ctx.write_line(f"{ctx.var_names[item.var]} = {text.code};", item.line)
    else:
        statements.var_set(ctx, item)


def _prefetch(ctx: CContext, item: ir.Prefetch) -> None:
    at = linear(ctx, item.array, item.indices)
    ctx.write_line(
        f"__builtin_prefetch({memory.address(ctx, item.array, at).code}, 0, {3 if item.near else 2});", item.line
    )


_KEYWORDS = """auto break case char const continue default do double else enum extern float for goto if inline int long register
    restrict return short signed sizeof static struct switch typedef union unsigned void volatile while asm typeof linux unix
    args first last linear rest program memcpy size_t zero"""

C11: Dialect[CContext] = Dialect(
    column="c",
    constant="const {type} {name} = {value};",
    variable="{type} {name} = {value};",
    loop="for ({type} {name} = {start}; {name} < {stop}; {name} += {step}) {{",
    barrier=(),  # one lane has no others to wait for
    reserved=frozenset(_KEYWORDS.split()),
    value_type=lambda ctx, value: ctx.lib.type_of(values.form_of(value)),
    literal=lambda ctx, value, dtype: values.literal(value, dtype),
    read=memory.read,
    write=memory.write,
    atomic=memory.atomic,
    lowered=values.lowered,
    cast=values.cast,
    helper=values.helper,
    bound=statements.bound,
    condition=statements.condition,
    values=values.VALUES,
    statements={
        **statements.COMMON_STATEMENTS,
        ir.VarNew: _var_new,
        ir.VarSet: _var_set,
        ir.Lanes: lambda ctx, item: statements.loop(ctx, item, 1),
        ir.Prefetch: _prefetch,
    },
)


def _body(ctx: CContext, kernel: ir.KernelIR) -> list[str]:
    for array in kernel.scratch:
        element = scalar_type(memory_dtype(array.dtype))
        ctx.write_line(f"{element} {ctx.array_names[array]}[{prod(array.shape)}] __attribute__((aligned(64)));")
    lines = statements.write_body(ctx)
    return [*_UNKNOWN_ZERO, *lines] if ctx.reads_zero else lines


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
#ifdef __GNUC__
#define CAMSHAFT_NO_VECTORS __asm__ volatile("")
#else
#define CAMSHAFT_NO_VECTORS
#endif
"""


# gcc 12 takes 30 s to vectorize a loop with 32 interleaved loads and stores; it leaves loops with an asm statement as they are.
MOST_INTERLEAVED = 24
_NO_VECTORS = "CAMSHAFT_NO_VECTORS"


def _without_vectors(lines: list[str]) -> list[str]:
    """The lines with a mark after the first store, if there are more than MOST_INTERLEAVED scalar stores."""
    stores = [i for i, line in enumerate(lines) if "] = " in line and not line.lstrip().startswith("const")]
    if len(stores) <= MOST_INTERLEAVED:
        return lines
    first = lines[stores[0]]
    indent = first[: len(first) - len(first.lstrip())]
    return [*lines[: stores[0] + 1], f"{indent}{_NO_VECTORS};", *lines[stores[0] + 1 :]]


def emit(kernel: ir.KernelIR, symbol: str) -> str:
    """Return the C text of a kernel: one exported function `symbol`. KernelError for an instruction that C lacks."""
    kernel = expand_functions(expand_tiles(kernel, 1), "c")
    body = CContext(kernel, C11, kernel.scratch)
    lines = _body(body, kernel)
    arrays = [(array, body.array_names[array]) for array in kernel.arrays]
    parameters = [f"{_pointer(array)}restrict {name}" for array, name in arrays]
    parameters += [f"int64_t {name}" for name in (*body.scalar_names, *body.program_names)]
    code = "\n".join(line for line in lines if not line.lstrip().startswith("//"))
    names = [*(name for _, name in arrays), *body.scalar_names, *body.program_names]
    unused = [f"    (void){name};" for name in names if not re.search(rf"\b{name}\b", code)]
    text = [
        *body.heading(),
        _HEAD,
        *body.lib.text(),
        "",
        f"static void program({', '.join(parameters)})",
        "{",
        *unused,
        *_without_vectors(lines),
        "}",
        "",
        *_entry(kernel, body, arrays, symbol),
    ]
    return "\n".join(text) + "\n"


def _pointer(array: ir.Array) -> str:
    const = "" if array.writable else "const "
    return f"{const}{scalar_type(memory_dtype(array.dtype))} *"


def _entry(kernel: ir.KernelIR, body: CContext, arrays: list[tuple[ir.Array, str]], symbol: str) -> list[str]:
    """Unpack the argument block, then loop over the programs. The last grid axis runs fastest."""
    lines = [f"void {symbol}(const int64_t *args, int64_t first, int64_t last);", ""]
    lines += [f"void {symbol}(const int64_t *args, int64_t first, int64_t last)", "{"]
    for i, (array, name) in enumerate(arrays):
        lines.append(f"    {_pointer(array)}{name} = ({_pointer(array).strip()})(intptr_t)args[{i}];")
    for i, name in enumerate(body.scalar_names):
        lines.append(f"    const int64_t {name} = *(const int64_t *)(intptr_t)args[{len(arrays) + i}];")
    lines += ["    for (int64_t linear = first; linear < last; linear++) {", "        int64_t rest = linear;"]
    sizes = body.grid_sizes()
    for axis in range(len(sizes) - 1, 0, -1):
        size = sizes[axis]
        lines.append(f"        const int64_t {body.program_names[axis]} = rest % {size};")
        lines.append(f"        rest /= {size};")
    programs = ["rest", *body.program_names[1:]]
    arguments = [*(name for _, name in arrays), *body.scalar_names, *programs]
    unread = [] if kernel.arrays or kernel.scalars else ["    (void)args;"]
    return [*lines, f"        program({', '.join(arguments)});", "    }", *unread, "}"]

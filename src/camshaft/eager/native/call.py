"""LLVM IR of the functions that CPython calls for an elementwise op on arrays: check, launch, return.

PyObject *flat(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names), a function for each number of inputs. The
common case is exact ndarrays of native dtypes and one shape, contiguous alike, with 0-d arrays and floats between them, and an
`out` that overlaps none or lies just where an input does. Anything else goes to the op's Python function with the same arguments.
"""

from __future__ import annotations

from camshaft.eager.native import cpython_abi as layout
from camshaft.eager.native.call_state import field, word
from camshaft.eager.native.inputs import agree_lines, find_row_lines, given_lines, input_lines, reference_lines
from camshaft.eager.native.output import arguments_lines, output_lines


def flat_ir(symbol: str, n: int, state_slot: int) -> str:
    """The function for n inputs. `state_slot` is where `self` keeps the ndarray of its state, in bytes."""
    lines = [
        "begin:",
        f"%block = alloca [{n + 2} x i64], align 64",
        "%launch = alloca [3 x i64], align 16",
        "%asked = alloca ptr",
        "%total.at = alloca i64",
        "%overflow = alloca i32",
        f"%copied.args = alloca [{n + 1} x ptr]",
        *(f"%slot{i} = alloca double" for i in range(n)),
        *field("holder", "ptr", "%self", state_slot),
        *field("state", "ptr", "%holder", layout.DATA),
        *word("array_type"),
        *word("float_type"),
        *given_lines(n),
    ]
    for i in range(n):
        lines += input_lines(i, f"input{i}.read")
    lines += [*reference_lines(n), *find_row_lines(n), *agree_lines(n), *output_lines(n), *arguments_lines(n)]
    text = "\n".join(line if line.endswith(":") else f"  {line}" for line in lines)
    text = text.replace("@SYMBOL", f"@{symbol}")
    return f"define ptr @{symbol}(ptr %self, ptr %args, i64 %n, ptr %names) nounwind {{\n{text}\n}}\n"

"""The state of a native call, and LLVM IR that reads it: words, rows and fields of objects."""

from __future__ import annotations

# The state, int64 words: functions and objects of CPython and NumPy, then a row for each dtype that has a kernel.
WORDS = (
    "n_rows",
    "array_type",
    "float_type",
    "int_type",
    "int_value",
    "new_copy",
    "slow",
    "out_name",
    "vectorcall",
    "incref",
    "decref",
    "save_thread",
    "restore_thread",
    "new_like",
    "pool",
    "long_from_address",
    "empty",
    "scalar_of",
    "take_memory",
    "free_memory",
)
ROWS_AT, ROW_WORDS = 24, 24
# A row: dtypes and types of scalars (by their address) and bytes an element of inputs and output, elements of a program; from how
# many elements on the lock is released, and the work shared; how a Python number is stored, and the ints that can be; then an
# entry for each set of inputs that are one element (bit i for input i).
ROW = (
    "dtype0",
    "dtype1",
    "dtype2",
    "out_dtype",
    "scalar0",
    "scalar1",
    "scalar2",
    "nbytes0",
    "nbytes1",
    "nbytes2",
    "out_nbytes",
    "block",
    "release",
    "share",
    "number",
    "least",
    "most",
)
ENTRIES = len(ROW)
NO_FLOAT, AS_F32, AS_F64 = range(3)  # ints are stored as 8 bytes, of which the first are those of a narrower one


def field(name: str, kind: str, base: str, offset: int) -> list[str]:
    """%name = what lies `offset` bytes into `base`."""
    return [f"%{name}.at = getelementptr i8, ptr {base}, i64 {offset}", f"%{name} = load {kind}, ptr %{name}.at"]


def word(name: str, kind: str = "ptr") -> list[str]:
    """%name = a word of the state."""
    return field(name, kind, "%state", 8 * WORDS.index(name))


def row(name: str, kind: str = "i64") -> list[str]:
    """%row.name = a word of the row."""
    return field(f"row.{name}", kind, "%row", 8 * ROW.index(name))


def conjunction(name: str, terms: list[str]) -> list[str]:
    """%name = the conjunction of i1 values."""
    lines, last = [], terms[0]
    for i, term in enumerate(terms[1:]):
        lines.append(f"%{name}.{i} = and i1 {last}, {term}")
        last = f"%{name}.{i}"
    return [*lines, f"%{name} = and i1 {last}, true"]

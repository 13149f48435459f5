"""The words of a native call's state: addresses, rows of kernels by dtypes, and a table of rows by shapes.

A start whose native calls come from the store imports these layouts, and not the modules that write IR.
"""

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
    "new_tuple",
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

# The table of rows by shapes.
MOST_AXES, MOST_STEPS, MOST_ARGUMENTS, MOST_INPUTS = 4, 12, 32, 3
# An input's part of the key: its dtype's address, its number of axes, their sizes.
KEY_WORDS = 2 + MOST_AXES
# Attributes by keyword, as the addresses of name and value, which live as long as the row.
MOST_ATTRIBUTES = 2
ATTRIBUTE_WORDS = 2 * MOST_ATTRIBUTES
SHAPED_ROW = (
    *(f"key{i}" for i in range(MOST_INPUTS * KEY_WORDS)),
    *(f"attribute{i}" for i in range(ATTRIBUTE_WORDS)),
    "nbytes0",
    "nbytes1",
    "nbytes2",
    "in_place0",
    "in_place1",
    "in_place2",
    "out_dtype",
    "out_axes",
    *(f"out_size{i}" for i in range(MOST_AXES)),
    "out_nbytes",
    "second_dtype",
    "second_axes",
    *(f"second_size{i}" for i in range(MOST_AXES)),
    "release",
    "share",
    "scratch_nbytes",
    "n_steps",
    "steps",
)
SHAPED_ROW_WORDS, SHAPED_ROW_BITS = 48, 8
# A step: entry, programs, number of arguments, then for each of those the index of a base and the bytes added to it.
STEP_WORDS = 3 + 2 * MOST_ARGUMENTS
# Bases: three inputs, two outputs, scratch, and 0.
OUT_BASE, SCRATCH_BASE, NO_BASE, N_BASES = 3, 5, 6, 7
MOST_OUTPUTS = SCRATCH_BASE - OUT_BASE
MULTIPLIER = 0x9E3779B97F4A7C15
# A launch on the caller's stack: entry, argument block, programs.
LAUNCH_WORDS = 3


def row_indexes(key: list[int]) -> tuple[int, int]:
    """The two rows that may have a key, as `_find` computes them. With one row for a key, of 64, two of 8 shapes replaced each
    other in every third process."""
    found = 0
    for value in key:
        found = ((found ^ value) * MULTIPLIER) % 2**64
    first = found >> (64 - SHAPED_ROW_BITS)
    return first, first ^ 1

"""The words of a native call's state: addresses, then the rows of kernels by dtypes. shape_table.py has rows by shapes.

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

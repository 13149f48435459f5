"""The table of a native call with a kernel per shape: the words of a row, of its steps, and which rows may have a key."""

from __future__ import annotations

MOST_AXES, MOST_STEPS, MOST_ARGUMENTS, MOST_INPUTS = 4, 12, 32, 3
# An input's part of the key: its dtype's address, its number of axes, their sizes.
KEY_WORDS = 2 + MOST_AXES
# Attributes by keyword, as the addresses of name and value, which live as long as the row.
MOST_ATTRIBUTES = 2
ATTRIBUTE_WORDS = 2 * MOST_ATTRIBUTES
ROW = (
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
    "release",
    "share",
    "scratch_nbytes",
    "n_steps",
    "steps",
)
ROW_WORDS, ROW_BITS = 44, 8
# A step: entry, programs, number of arguments, then for each of those the index of a base and the bytes added to it.
STEP_WORDS = 3 + 2 * MOST_ARGUMENTS
# Bases: three inputs, the output, scratch, and 0.
OUT_BASE, SCRATCH_BASE, NO_BASE, N_BASES = 3, 4, 5, 6
MULTIPLIER = 0x9E3779B97F4A7C15
# A launch on the caller's stack: entry, argument block, programs.
LAUNCH_WORDS = 3


def row_indexes(key: list[int]) -> tuple[int, int]:
    """The two rows that may have a key, as `_find` computes them. With one row for a key, of 64, two of 8 shapes replaced each
    other in every third process."""
    found = 0
    for value in key:
        found = ((found ^ value) * MULTIPLIER) % 2**64
    first = found >> (64 - ROW_BITS)
    return first, first ^ 1

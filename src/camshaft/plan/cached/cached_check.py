"""Check that a plan from the store refers only to memory that it declares.

The store verifies that an entry's bytes are those that were written. These checks are for entries that were written wrongly: none
of the words may lead outside a region, whatever the entry says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.errors import PlanError
from camshaft.plan.runtime.native import layout
from camshaft.plan.runtime.workers import Words

if TYPE_CHECKING:
    from camshaft.plan.cached.stored_plan import PlanHeader, SerializedPlan, View

# The first regions. After them, in this order: kernels, named memory, the file's constants, computed constants, allocations.
LITERAL, MEMMOVE, COPY, EXTENTS, ARGUMENTS, ARENA, FIRST_KERNEL = range(7)
LEAST_BLAS_WORDS = 10  # its sizes and function, and where one product begins in a and in b
_DTYPE = re.compile(r"[<>|][biufV]\d{1,2}")
_SECOND_KEY = re.compile(r"([0-9a-f]{64})?")
_FACTOR_WORDS = [layout.FACTORS + 2 * factor for factor in range(layout.MAX_FACTORS)]


def check_plan(plan: SerializedPlan) -> None:
    """Raises PlanError unless every size is a whole number of at least 0, and every word is a literal in its range or an offset
    within its region. Raises TypeError for rows of other types."""
    header = plan.header
    kernels_end = FIRST_KERNEL + len(header.kernels)
    sizes = np.array([*_fixed_sizes(plan), *([0] * len(header.kernels)), *_memory_sizes(header)], np.int64)
    keys = [header.executor, *(key for _, key in header.kernels)]
    _require(all(_SECOND_KEY.fullmatch(key) for key in keys), "kernels")
    _require(math.prod(header.arena[1:]) >= 1 and header.threads >= 1, "sizes")
    records, places = plan.records
    _require(records.ndim == 2 and records.shape[1] == layout.RECORD_WORDS and plan.args.ndim == 3, "words")
    _check_words(plan.records, sizes)
    _check_words(plan.args, sizes)
    _check_records(records, places, plan, kernels_end)
    for view in (*header.inputs.values(), *header.outputs.values()):
        _check_view(view, sizes, kernels_end)
    _check_blas(header)


def _check_blas(header: PlanHeader) -> None:
    key, numbers = header.blas
    sizes = [header.computed[n] for n in numbers if type(n) is int and 0 <= n < len(header.computed)]
    whole = all(nbytes % 8 == 0 and nbytes >= 8 * LEAST_BLAS_WORDS for nbytes in sizes)
    _require(type(key) is str and len(sizes) == len(numbers) and whole and bool(key) == bool(sizes), "calls of BLAS")


def _require(is_true: bool, what: str) -> None:
    if not is_true:
        raise PlanError(f"a cached plan has wrong {what}")


def _fixed_sizes(plan: SerializedPlan) -> list[int]:
    """Returns the bytes of the regions before the kernels, in their order. Offsets of literals are not limited."""
    header = plan.header
    _require(all(_is_size(bound) for _, bound in header.extents), "extents")
    return [0, 0, 0, 8 * len(header.extents), plan.args[0].nbytes, _sizes(header.arena)[0]]


def _memory_sizes(header: PlanHeader) -> list[int]:
    named, constants = [nbytes for _, nbytes in header.memory], [constant.nbytes for constant in header.constants]
    return _sizes([*named, *constants, *header.computed, *header.allocated])


def _sizes(values: Iterable[Any]) -> list[int]:
    sizes = list(values)
    _require(all(map(_is_size, sizes)), "sizes")
    return sizes


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _check_words(words: Words, sizes: Words) -> None:
    """`words` are (offsets, region numbers)."""
    offsets, places = words
    _require(bool(((places >= 0) & (places < sizes.size)).all()), "regions")
    inside = (offsets >= 0) & (offsets <= sizes[places])
    _require(bool((inside | (places == LITERAL)).all()), "offsets")


def _check_records(records: Words, places: Words, plan: SerializedPlan, kernels_end: int) -> None:
    entries, n_factors = places[:, layout.ENTRY], records[:, layout.N_FACTORS]
    is_code = (entries == COPY) | ((entries >= FIRST_KERNEL) & (entries < kernels_end))
    _require(bool(is_code.all()) and not records[:, layout.ENTRY].any(), "entries")
    literals = [layout.CONSTANT, layout.WAIT, layout.HOME, layout.N_FACTORS, layout.STRIDE]
    divisors = [word + 1 for word in _FACTOR_WORDS]
    _require(not places[:, [*literals, *divisors]].any(), "literals")
    _require(bool((places[:, layout.ARGS] == ARGUMENTS).all()), "arguments")
    _require(bool(((n_factors >= 0) & (n_factors <= layout.MAX_FACTORS)).all()), "factors")
    for number, word in enumerate(_FACTOR_WORDS):
        used = n_factors > number
        is_extent = (places[:, word] == EXTENTS) & (records[:, word] + 8 <= 8 * len(plan.header.extents))
        _require(bool((~used | (is_extent & (records[:, word + 1] >= 1))).all()), "factors")
    homes, strides, own = records[:, layout.HOME], records[:, layout.STRIDE], plan.args.strides[1]
    _require(bool(((homes >= layout.REPLICATED) & (homes < plan.header.threads)).all()), "workers")
    _require(bool(((strides == 0) | ((strides == own) & (plan.args.shape[1] >= plan.header.threads))).all()), "workers")
    _require(bool((records[:, layout.CONSTANT] >= 0).all()), "programs")


def _check_view(view: View, sizes: Words, kernels_end: int) -> None:
    _require(bool(_DTYPE.fullmatch(view.dtype)), "views")
    nbytes = np.dtype(view.dtype).itemsize * math.prod(_sizes(view.shape))
    is_memory = view.region == ARENA or kernels_end <= view.region < sizes.size
    _require(is_memory and _is_size(view.offset) and view.offset + nbytes <= sizes[view.region], "views")

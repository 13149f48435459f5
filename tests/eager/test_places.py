"""Eager calls refuse positions, slots and blocks that are not in a paged cache: kernels would write outside of it."""

from __future__ import annotations

import numpy as np
import pytest

import camshaft as cs
from camshaft import ops
from camshaft.errors import ShapeError
from camshaft.extent import Extent

NAMES = ("kv_cache_update", "kv_cache_quantize", "attention", "turboquant_attention")


@pytest.mark.parametrize("name", NAMES)
def test_an_index_out_of_bounds_is_refused(name: str) -> None:
    op = ops.get(name)
    sample = next(iter(op.samples()))
    attrs = {a.name: sample.attrs[a.name] for a in op.parameters.attributes if a.name in sample.attrs}
    attrs = {key: value.bound if isinstance(value, Extent) else value for key, value in attrs.items()}
    names = op.parameters.tensors.split()
    for what in ("positions", "slots", "block_table"):
        for value in (-1, 10**6):
            given = [np.array(x) for x in sample.inputs]
            given[names.index(what)].reshape(-1)[-1] = value
            before = [x.copy() for x in given]
            with pytest.raises(ShapeError, match=f"{name}: got {what} from .*; wanted 0 to [0-9]+$"):
                getattr(cs, name)(*given, **attrs)
            for x, y in zip(given, before, strict=True):
                np.testing.assert_array_equal(x, y)
    getattr(cs, name)(*map(np.array, sample.inputs), **attrs)

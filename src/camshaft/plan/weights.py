"""Weights: the memory of constants, packed or mapped once and shared by every plan that reads them. Used by compile.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from camshaft.graph.graph import Source, Tensor
from camshaft.ops.quantized_matmul import INTERLEAVED, pack
from camshaft.plan.workers import aligned_bytes

Array = np.ndarray[Any, Any]


class Weights:
    """Bytes by source and layout. One value serves all plans of a model, so each weight is packed once."""

    def __init__(self) -> None:
        self._held: dict[tuple[Source, str], Array] = {}
        self.packed_nbytes = 0

    def memory(self, tensor: Tensor) -> Array:
        """The constant's bytes: packed into aligned memory, or the source's own where they are aligned already."""
        assert tensor.source is not None
        key = (tensor.source, tensor.spec.layout.name)
        if key not in self._held:
            self._held[key] = self._load(tensor)
        return self._held[key]

    def _load(self, tensor: Tensor) -> Array:
        assert tensor.source is not None
        data = tensor.source.data()
        if tensor.spec.layout is INTERLEAVED:
            memory = aligned_bytes(tensor.spec.nbytes, 64)
            pack(data, tensor.spec, memory)
        elif data.ctypes.data % 64:
            memory = aligned_bytes(data.nbytes, 64)
            memory[:] = data
        else:
            memory = data
        self.packed_nbytes += memory.nbytes
        return memory

    @property
    def nbytes(self) -> int:
        """Bytes of all constants held."""
        return sum(m.nbytes for m in self._held.values())

"""KVCache: the memory of keys and values in blocks of 16 tokens, and which sequence holds which. Sessions own slots of it.

Its arrays are states of the model's plans. Memory is reserved for every slot and, on the host, touched only as tokens come:
in small pages first, in huge ones once the tokens that are held take more than a TLB reaches in small ones.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import DType, i32
from camshaft.errors import ContextError, SettingError
from camshaft.models.config import ModelConfig
from camshaft.ops.spec import TensorSpec
from camshaft.plan.memory.huge_pages import late_huge_pages
from camshaft.plan.runtime.workers import aligned_bytes

if TYPE_CHECKING:
    from camshaft.backends.device import Device
    from camshaft.plan.memory.device_memory import DeviceArray

BLOCK_TOKENS = 16
KINDS = ("keys", "values", "key_scales", "value_scales")  # of a layer; scales of quantized caches only
ALIGNMENT = 64
# Of tokens that are held, from which on the pages are huge: two thirds of what Zen 4's TLB reaches in small ones. Each layer's
# first block lies on huge pages of its own, so the first token touches all of them, for up to 140 ms here.
HUGE_FROM_NBYTES = 8 << 20
# Blocks, 67 million tokens, beyond which the memory is asked for first: a context of 2^26 for 31 sessions took 23 GB of lists and
# rotations before it was refused.
MOST_UNASKED = 1 << 22
Array = np.ndarray[Any, Any]


class KVCache:
    """`states` and `specs` hold, by name, `keys.N` [blocks, kv_heads, head_dim, 16], `values.N` [blocks, kv_heads, 16, head_dim]
    and the `block_table` [slots, blocks a sequence]. `form` is an element type, or the block format of a quantized cache, which
    has `key_scales.N` and `value_scales.N` too (ops/attention/kv_cache_quantize.py). With a `device`, keys and values lie there;
    the table is the host's."""

    def __init__(
        self, config: ModelConfig, context: int, form: DType | str, n_slots: int, device: Device | None = None
    ) -> None:
        self.context, self.n_slots, self._device = context, n_slots, device
        self._enlarge: Callable[[], None] | None = None  # of memory whose pages are small yet
        self.blocks_per_slot = -(-context // BLOCK_TOKENS)
        table = TensorSpec((n_slots, self.blocks_per_slot), i32)
        self.table: Array = _view(aligned_bytes(table.nbytes, ALIGNMENT), table)
        n_blocks = self.blocks_per_slot * n_slots
        heads, dim = config.n_kv_heads, config.head_dim
        self.specs = {"block_table": table}
        for layer in range(config.n_layers):
            made = (
                _plain(form, n_blocks, heads, dim)
                if isinstance(form, DType)
                else _quantized(form, n_blocks, heads, dim)
            )
            self.specs |= {f"{kind}.{layer}": spec for kind, spec in zip(KINDS, made, strict=False)}
        if n_blocks > MOST_UNASKED and device is None:
            _ = self.states  # MemoryError now, before lists as long
        self._free_blocks = list(range(n_blocks - 1, -1, -1))
        self._free_slots = list(range(n_slots - 1, -1, -1))
        self._held: dict[int, list[int]] = {}

    @cached_property
    def states(self) -> dict[str, Array | DeviceArray]:
        """The memory of every spec, made when it is first asked for. BackendError when the device has too little."""
        made: dict[str, Array | DeviceArray] = {"block_table": self.table}
        specs = {name: spec for name, spec in self.specs.items() if name not in made}
        if self._device is not None:
            from camshaft.plan.memory.device_memory import DeviceArray

            return made | {name: DeviceArray.zeros(self._device, spec) for name, spec in specs.items()}
        spans = [-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in specs.values()]
        (pool, self._enlarge), first = late_huge_pages(sum(spans)), 0
        for (name, spec), span in zip(specs.items(), spans, strict=True):
            made[name] = _view(pool[first : first + spec.nbytes], spec)
            first += span
        return made

    @property
    def session_nbytes(self) -> int:
        """Bytes of keys and values of one full context."""
        total = sum(spec.nbytes for name, spec in self.specs.items() if name != "block_table")
        return total // self.n_slots

    @property
    def n_free(self) -> int:
        """How many slots nobody holds."""
        return len(self._free_slots)

    def open_slot(self) -> int:
        """A free sequence slot. ContextError when all are taken."""
        try:
            slot = self._free_slots.pop()  # one step: sessions may open in several threads
        except IndexError:
            raise ContextError(
                f"all {self.n_slots} sessions of this model are open; close one, or give more with sessions="
            ) from None
        self._held[slot] = []
        return slot

    def close_slot(self, slot: int) -> None:
        """Gives the slot and its blocks back; closing twice is allowed."""
        held = self._held.pop(slot, None)
        if held is not None:
            self._free_blocks += held[::-1]
            self._free_slots.append(slot)

    def close(self) -> None:
        """Lets go of the memory. Slots may still be closed."""
        for held in self.states.values():
            if not isinstance(held, np.ndarray):
                held.close()
        self.states.clear()
        self._enlarge = None

    def reserve(self, slot: int, n_tokens: int) -> None:
        """Makes room for positions 0 to n_tokens - 1. ContextError past the context, or for a slot closed meanwhile."""
        if n_tokens > self.context:
            raise ContextError(
                f"{n_tokens} tokens do not fit the context of {self.context}; shorten the text or raise --context"
            )
        held, table = self._held.get(slot), self.table
        if held is None:
            raise ContextError("the session is closed")
        while len(held) * BLOCK_TOKENS < n_tokens:
            block = self._free_blocks.pop()  # one step: sessions may close in several threads
            table[slot, len(held)] = block
            held.append(block)
        self._enlarge_in_time()

    def _enlarge_in_time(self) -> None:
        """Makes the memory's pages huge once the blocks that are held are worth it."""
        n_blocks = self.n_slots * self.blocks_per_slot
        n_held = n_blocks - len(self._free_blocks)
        if self._enlarge is not None and n_held * self.session_nbytes >= HUGE_FROM_NBYTES * self.blocks_per_slot:
            enlarge, self._enlarge = self._enlarge, None
            enlarge()


def _plain(dtype: DType, n_blocks: int, heads: int, dim: int) -> tuple[TensorSpec, TensorSpec]:
    keys = TensorSpec((n_blocks, heads, dim, BLOCK_TOKENS), dtype)
    return keys, TensorSpec((n_blocks, heads, BLOCK_TOKENS, dim), dtype)


def _quantized(form: str, n_blocks: int, heads: int, dim: int) -> tuple[TensorSpec, ...]:
    from camshaft.ops.attention.kv_cache_quantize import GROUP, cache_specs  # here: a plain cache needs no op

    if dim % GROUP:
        raise SettingError(f"a KV cache of {form} for heads of {dim}; it wants a multiple of {GROUP}: take f16")
    return tuple(cache_specs(form, n_blocks, heads, dim))


def _view(memory: Array, spec: TensorSpec) -> Array:
    return memory.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)

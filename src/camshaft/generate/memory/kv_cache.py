"""KVCache: the paged memory of keys and values, in blocks of 16 tokens, with a block table per sequence slot.

Its arrays are states of the model's plans. Address space is reserved for every slot; on the host, pages are touched only as
tokens arrive. They start as small pages and become huge pages once the tokens exceed the reach of the TLB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import DType, f32, i32
from camshaft.errors import ContextError, ModelError, SettingError
from camshaft.generate.memory.slots import Slots
from camshaft.models.config import ModelConfig
from camshaft.models.recurrent_config import ATTENTION, BOTH, FEED_FORWARD
from camshaft.ops.spec import TensorSpec
from camshaft.plan.memory.allocate import aligned_bytes, late_huge_pages

if TYPE_CHECKING:
    from camshaft.backends.device import Device
    from camshaft.generate.engine.prefix_cache import PrefixCache
    from camshaft.plan.memory.device_memory import DeviceArray

BLOCK_TOKENS = 16
STATES = ("conv", "state")  # arrays of a recurrent layer, [slots, ..] (models/recurrent_config.py)
KINDS = ("keys", "values", "key_scales", "value_scales")  # arrays of a layer; scales only for quantized caches
ALIGNMENT = 64
# Bytes of tokens in use from which huge pages pay. Below that they cost: each layer's first block has its own huge
# page, so the first token would touch all of them (up to 140 ms).
HUGE_FROM_NBYTES = 8 << 20
# From this many blocks (67 million tokens) the memory is allocated first, so that an impossible size fails
# before the block lists and rotation tables are built.
EAGER_FROM_BLOCKS = 1 << 22
Array = np.ndarray[Any, Any]


class KVCache:
    """The KV cache of one model. `states` and `specs` have, by name, `keys.N` [blocks, kv_heads, head_dim, 16], `values.N`
    [blocks, kv_heads, 16, head_dim] and `block_table` [slots, blocks per sequence]; of a recurrent layer `conv.N` and `state.N`
    [slots, ..]. `form` is a dtype, or the block format of a
    quantized cache, which adds `key_scales.N` and `value_scales.N` (see ops/attention/kv_cache_quantize.py). With a `device`
    the keys and values are in its memory; the block table is in host memory."""

    def __init__(
        self, config: ModelConfig, context: int, form: DType | str, n_slots: int, device: Device | None = None
    ) -> None:
        self.context, self.n_slots, self._device = context, n_slots, device
        self._enlarge: Callable[[], None] | None = None  # turns small pages into huge ones, once
        self.blocks_per_slot = -(-context // BLOCK_TOKENS)
        table = TensorSpec((n_slots, self.blocks_per_slot), i32)
        self.table: Array = _view(aligned_bytes(table.nbytes, ALIGNMENT), table)
        n_blocks = self.blocks_per_slot * n_slots
        self.specs = {"block_table": table}
        for layer, options in enumerate(config.layers):
            if options.kind not in (ATTENTION, FEED_FORWARD):
                assert config.recurrent is not None
                self.specs |= {
                    f"{n}.{layer}": TensorSpec((n_slots, *s), f32) for n, s in config.recurrent.states.items()
                }
            if options.kind not in (ATTENTION, BOTH) or options.shares >= 0:
                continue
            heads, dim = config.of_layer(layer).n_kv_heads, config.of_layer(layer).head_dim
            layer_specs = (
                _plain(form, n_blocks, heads, dim)
                if isinstance(form, DType)
                else _quantized(form, n_blocks, heads, dim)
            )
            self.specs |= {f"{kind}.{layer}": spec for kind, spec in zip(KINDS, layer_specs, strict=False)}
        if n_blocks > EAGER_FROM_BLOCKS and device is None:
            _ = self.states  # raises MemoryError before lists of that length are built
        self._free_blocks = list(range(n_blocks - 1, -1, -1))
        self.slots = Slots(n_slots)
        self._blocks: dict[int, list[int]] = {}  # of each open slot
        self.prefixes: PrefixCache | None = None  # the blocks that several slots may have

    @cached_property
    def states(self) -> dict[str, Array | DeviceArray]:
        """The memory of every spec, allocated on first use. Raises BackendError if the device has too little."""
        arrays: dict[str, Array | DeviceArray] = {"block_table": self.table}
        specs = {name: spec for name, spec in self.specs.items() if name not in arrays}
        if self._device is not None:
            from camshaft.plan.memory.device_memory import DeviceArray

            return arrays | {name: DeviceArray.zeros(self._device, spec) for name, spec in specs.items()}
        spans = [-(-spec.nbytes // ALIGNMENT) * ALIGNMENT for spec in specs.values()]
        (pool, self._enlarge), first = late_huge_pages(sum(spans)), 0
        for (name, spec), span in zip(specs.items(), spans, strict=True):
            arrays[name] = _view(pool[first : first + spec.nbytes], spec)
            first += span
        return arrays

    @property
    def session_nbytes(self) -> int:
        """Bytes of keys and values of one session with a full context."""
        total = sum(spec.nbytes for name, spec in self.specs.items() if name.partition(".")[0] in KINDS)
        return total // self.n_slots

    @property
    def state_nbytes(self) -> int:
        """Bytes of the recurrent layers' states of one session."""
        return sum(self.specs[name].nbytes for name in self.state_names) // self.n_slots

    @cached_property
    def has_keys(self) -> bool:
        """Whether some layers have keys and values."""
        return self.session_nbytes > 0

    @cached_property
    def is_recurrent(self) -> bool:
        """Whether some layers have states that a session cannot go back in."""
        return bool(self.state_names)

    def copied_states(self, slot: int) -> dict[str, Array]:
        """A copy of the recurrent layers' states of a slot."""
        return {name: self._bytes_of(name, slot).copy() for name in self.state_names}

    def write_states(self, slot: int, copied: dict[str, Array]) -> None:
        """Make a slot's states those that `copied_states` returned."""
        for name in self.state_names:
            memory = self.states[name]
            if isinstance(memory, np.ndarray):
                self._bytes_of(name, slot)[...] = copied[name]
            else:
                memory.memory.write(copied[name], slot * copied[name].nbytes)

    def copy_slot(self, source: int, target: int, n_tokens: int) -> None:
        """Give a slot the first `n_tokens` keys and values of another, whose recurrent states are those after them, and these.

        Raises ContextError as `reserve`."""
        self.reserve(target, n_tokens)
        n_blocks = -(-n_tokens // BLOCK_TOKENS)
        pairs = list(zip(self._blocks[source][:n_blocks], self._blocks[target], strict=False))
        for name in self.specs:
            if name.partition(".")[0] in KINDS:
                for block, to in pairs:
                    self._copy_row(name, block, to)
        for name in self.state_names:
            self._copy_row(name, source, target)

    def _copy_row(self, name: str, source: int, target: int) -> None:
        """Copy one block of keys or values, or a slot's state."""
        memory, spec = self.states[name], self.specs[name]
        if isinstance(memory, np.ndarray):
            memory[target] = memory[source]
            return
        nbytes = spec.nbytes // spec.bounds[0]
        memory.memory.write(memory.memory.read(source * nbytes, nbytes), target * nbytes)

    @property
    def state_names(self) -> list[str]:
        """The arrays of recurrent layers."""
        return [name for name in self.specs if name.partition(".")[0] in STATES]

    def _bytes_of(self, name: str, slot: int) -> Array:
        """The bytes of a slot's state: a view, or a copy from a device."""
        memory, nbytes = self.states[name], self.specs[name].nbytes // self.n_slots
        if isinstance(memory, np.ndarray):
            view: Array = memory[slot].reshape(-1).view(np.uint8)
            return view
        return memory.memory.read(slot * nbytes, nbytes)

    @property
    def n_free(self) -> int:
        """The number of free slots."""
        return self.slots.n_free

    def open_slot(self, *, wait: bool = False) -> int:
        """Take a free slot; with `wait`, as soon as a generation of another thread has freed one.

        Raises ContextError if there is none, ModelError if the model is closed meanwhile."""
        slot = self.slots.take(wait=wait)
        if slot is None:
            if self.slots.is_closed:
                raise ModelError("the model is closed")
            raise ContextError(
                f"all {self.n_slots} sessions of this model are open; close one, or open the model with a larger sessions="
            )
        self._blocks[slot] = []
        return slot

    def close_slot(self, slot: int) -> None:
        """Free the slot and its blocks; may be called twice."""
        blocks = self._blocks.pop(slot, None)
        if blocks is not None:
            free = blocks if self.prefixes is None else self.prefixes.release(blocks)
            self._free_blocks += free[::-1]
            self.slots.release(slot)

    def free_blocks(self, blocks: Sequence[int]) -> None:
        """Make blocks free that no slot has and nobody shares."""
        self._free_blocks += blocks

    def blocks_of(self, slot: int) -> tuple[int, ...]:
        """The blocks of an open slot, in the order of its positions."""
        return tuple(self._blocks[slot])

    def append_block(self, slot: int, block: int) -> None:
        """Make `block` the next one of an open slot."""
        blocks = self._blocks[slot]
        self.table[slot, len(blocks)] = block
        blocks.append(block)

    def _take_block(self) -> int:
        try:
            return self._free_blocks.pop()  # atomic: sessions may be closed in several threads
        except IndexError:
            if self.prefixes is None:
                raise
            return self.prefixes.evict()

    def close(self) -> None:
        """Release the memory. Slots may still be closed afterwards."""
        self.slots.close()
        for array in self.states.values():
            if not isinstance(array, np.ndarray):
                array.close()
        self.states.clear()
        self._enlarge = None

    def reserve(self, slot: int, n_tokens: int) -> None:
        """Reserve blocks for positions 0 to n_tokens - 1. Raises ContextError beyond the context or for a closed slot."""
        if n_tokens > self.context:
            raise ContextError(
                f"{n_tokens} tokens do not fit the context of {self.context}; shorten the text or raise context="
            )
        blocks = self._blocks.get(slot)
        if blocks is None:
            raise ContextError("the session is closed")
        while len(blocks) * BLOCK_TOKENS < n_tokens:
            self.append_block(slot, self._take_block())
        self._enlarge_pages()

    def _enlarge_pages(self) -> None:
        """Switch to huge pages once the blocks in use take HUGE_FROM_NBYTES."""
        n_blocks = self.n_slots * self.blocks_per_slot
        n_used = n_blocks - len(self._free_blocks)
        if self._enlarge is not None and n_used * self.session_nbytes >= HUGE_FROM_NBYTES * self.blocks_per_slot:
            enlarge, self._enlarge = self._enlarge, None
            enlarge()


def _plain(dtype: DType, n_blocks: int, heads: int, dim: int) -> tuple[TensorSpec, TensorSpec]:
    keys = TensorSpec((n_blocks, heads, dim, BLOCK_TOKENS), dtype)
    return keys, TensorSpec((n_blocks, heads, BLOCK_TOKENS, dim), dtype)


def _quantized(form: str, n_blocks: int, heads: int, dim: int) -> tuple[TensorSpec, ...]:
    from camshaft.ops.attention.kv_cache_quantize import GROUP, cache_specs  # only quantized caches import the op

    if dim % GROUP:
        raise SettingError(f"a {form} KV cache for a head size of {dim}; wanted a multiple of {GROUP}: use f16")
    return tuple(cache_specs(form, n_blocks, heads, dim))


def _view(memory: Array, spec: TensorSpec) -> Array:
    return memory.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)

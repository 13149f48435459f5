"""KVCache: the paged memory of keys and values, in blocks of 16 tokens, with a block table per sequence slot.

Its arrays are states of the model's plans. Address space is reserved for every slot; on the host, pages are touched only as
tokens arrive. They start as small pages and become huge pages once the tokens exceed the reach of the TLB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import DType, i32
from camshaft.generate.memory.block_tables import BlockTables
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS, KINDS, cache_specs, ring_names, ring_of
from camshaft.models.config import ModelConfig
from camshaft.models.configs.recurrent import STATES
from camshaft.ops.spec import TensorSpec
from camshaft.plan.memory.allocate import aligned_bytes, late_huge_pages

if TYPE_CHECKING:
    from camshaft.backends.device import Device
    from camshaft.plan.memory.device_memory import DeviceArray

ALIGNMENT = 64
# Bytes of tokens in use from which huge pages pay. Below that they cost: each layer's first block has its own huge
# page, so the first token would touch all of them (up to 140 ms).
HUGE_FROM_NBYTES = 8 << 20
# From this many blocks (67 million tokens) the memory is allocated first, so that an impossible size fails
# before the block lists and rotation tables are built.
EAGER_FROM_BLOCKS = 1 << 22
Array = np.ndarray[Any, Any]


class KVCache(BlockTables):
    """The KV cache of one model. `states` and `specs` have, by name, `keys.N` [blocks, kv_heads, head_dim, 16], `values.N`
    [blocks, kv_heads, 16, head_dim] and `block_table` [slots, blocks per sequence]; of a recurrent layer `conv.N` and `state.N`
    [slots, ..]. `form` is a dtype, or the block format of a
    quantized cache, which adds `key_scales.N` and `value_scales.N` (see ops/attention/kv_cache_quantize.py). Layers with a window
    keep a ring of blocks per slot, which `ring_table` repeats, if `run_tokens` says how many tokens a run has at most. Without
    `tokens`, of all slots together, there is room for each one's whole context. With a
    `device` the keys and values are in its memory; the tables are in host memory."""

    def __init__(
        self,
        config: ModelConfig,
        context: int,
        form: DType | str,
        n_slots: int,
        device: Device | None = None,
        *,
        run_tokens: int = 0,
        tokens: int | None = None,
    ) -> None:
        self._device = device
        self._enlarge: Callable[[], None] | None = None  # turns small pages into huge ones, once
        per_slot = -(-context // BLOCK_TOKENS)
        table, whole = TensorSpec((n_slots, per_slot), i32), per_slot * n_slots
        n_blocks = whole if tokens is None else min(whole, -(-tokens // BLOCK_TOKENS))
        self._tables = {"block_table": _view(aligned_bytes(table.nbytes, ALIGNMENT), table)}
        self.ring = ring_of(config, context, run_tokens) if run_tokens else None
        if self.ring is not None:
            self._tables["ring_table"] = _view(aligned_bytes(table.nbytes, ALIGNMENT), table)
            first = np.arange(n_slots, dtype=np.int32)[:, None] * self.ring.n_blocks
            self._tables["ring_table"][...] = first + np.arange(per_slot) % self.ring.n_blocks
        layers = cache_specs(config, form, n_slots, n_blocks, self.ring)
        self.ring_names = ring_names(layers, config.layers, self.ring)
        self.specs = dict.fromkeys(self._tables, table) | layers
        if n_blocks > EAGER_FROM_BLOCKS and device is None:
            _ = self.states  # raises MemoryError before lists of that length are built
        super().__init__(context, n_slots, n_blocks, self._tables["block_table"])

    @cached_property
    def states(self) -> dict[str, Array | DeviceArray]:
        """The memory of every spec, allocated on first use. Raises BackendError if the device has too little."""
        arrays: dict[str, Array | DeviceArray] = dict(self._tables)
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
        kinds = [name for name in self.specs if name.partition(".")[0] in KINDS and name not in self.ring_names]
        return self.ring_nbytes + self.blocks_per_slot * sum(map(self.row_nbytes, kinds))

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states of all sessions."""
        return sum(spec.nbytes for name, spec in self.specs.items() if name not in self._tables)

    @property
    def ring_nbytes(self) -> int:
        """Bytes of keys and values of one session in rings."""
        return sum(self.specs[name].nbytes for name in self.ring_names) // self.n_slots

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

    @property
    def state_names(self) -> list[str]:
        """The arrays of recurrent layers."""
        return [name for name in self.specs if name.partition(".")[0] in STATES]

    @cached_property
    def copied_nbytes(self) -> dict[str, int]:
        """Bytes of what `copied_states` has of each array."""
        states = {name: self.specs[name].nbytes // self.n_slots for name in self.state_names}
        n_blocks = 0 if self.ring is None else self.ring.window_blocks
        return states | {name: n_blocks * self.row_nbytes(name) for name in self.ring_names}

    def copied_states(self, slot: int, position: int) -> dict[str, Array]:
        """A copy of what a session cannot go back in: the recurrent layers' states of a slot, which are those after `position`
        tokens, and of layers with a window the keys and values seen from there."""
        return {name: self.read_rows(name, self._rows(name, slot, position)) for name in self.copied_nbytes}

    def write_states(self, slot: int, position: int, copied: Mapping[str, Array]) -> None:
        """Make a slot's states and windows those that `copied_states` returned."""
        for name in self.copied_nbytes:
            self.write_rows(name, self._rows(name, slot, position), copied[name])

    def _rows(self, name: str, slot: int, position: int) -> list[int]:
        """The rows of an array's first axis of which `copied_states` is made."""
        if self.ring is None or name not in self.ring_names:
            return [slot]
        return self.ring.blocks_before(slot, position)

    def copy_slot(self, source: int, target: int, n_tokens: int) -> None:
        """Give a slot the first `n_tokens` keys and values of another, whose recurrent states and rings are those after them, and
        these. Raises ContextError as `reserve`."""
        self.reserve(target, n_tokens)
        n_blocks, of_ring = -(-n_tokens // BLOCK_TOKENS), 0 if self.ring is None else self.ring.n_blocks
        blocks = self._blocks[source][:n_blocks], self._blocks[target][:n_blocks]
        rings = tuple(list(range(slot * of_ring, (slot + 1) * of_ring)) for slot in (source, target))
        for name in self.specs:
            if name.partition(".")[0] in (*KINDS, *STATES):
                one = ([source], [target]) if name in self.state_names else rings if name in self.ring_names else blocks
                self.write_rows(name, one[1], self.read_rows(name, one[0]))

    def row_nbytes(self, name: str) -> int:
        """Bytes of a block of keys or values, or of a slot's state."""
        return self.specs[name].nbytes // self.specs[name].bounds[0]

    def read_rows(self, name: str, rows: Sequence[int]) -> Array:
        """A copy of some blocks of keys or values, or of slots' states, as bytes."""
        memory, nbytes = self.states[name], self.row_nbytes(name)
        if isinstance(memory, np.ndarray):
            found: Array = memory[list(rows)].reshape(-1).view(np.uint8)
            return found
        parts = [memory.memory.read(row * nbytes, nbytes) for row in rows]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)

    def write_rows(self, name: str, rows: Sequence[int], data: Array) -> None:
        """Write what `read_rows` returned to as many rows."""
        memory, nbytes = self.states[name], self.row_nbytes(name)
        if isinstance(memory, np.ndarray):
            first, n = rows[0] if rows else 0, len(rows)
            where = slice(first, first + n) if [*rows] == [*range(first, first + n)] else [*rows]
            memory[where] = data.reshape(-1).view(memory.dtype).reshape(n, *memory.shape[1:])
            return
        for row, part in zip(rows, data.reshape(len(rows), nbytes), strict=True):
            memory.memory.write(np.ascontiguousarray(part), row * nbytes)

    def close(self) -> None:
        """Release the memory. Slots may still be closed afterwards."""
        self.slots.close()
        for array in self.states.values():
            if not isinstance(array, np.ndarray):
                array.close()
        self.states.clear()
        self._enlarge = None

    def reserve(self, slot: int, n_tokens: int) -> None:
        """Reserve blocks as `BlockTables.reserve`, and use huge pages from HUGE_FROM_NBYTES on."""
        super().reserve(slot, n_tokens)
        self._enlarge_pages()

    def _enlarge_pages(self) -> None:
        """Switch to huge pages once the blocks in use take HUGE_FROM_NBYTES."""
        n_used = self.n_blocks - len(self._free_blocks)
        if self._enlarge is not None and n_used * self.session_nbytes >= HUGE_FROM_NBYTES * self.blocks_per_slot:
            enlarge, self._enlarge = self._enlarge, None
            enlarge()


def _view(memory: Array, spec: TensorSpec) -> Array:
    return memory.view(spec.parts[0].dtype.numpy).reshape(spec.bounds)


def block_arrays(cache: KVCache) -> Iterator[tuple[str, int]]:
    """(name, bytes of a block) of each array of keys and values that has a block for every 16 tokens."""
    for name in cache.specs:
        if name.partition(".")[0] in KINDS and name not in cache.ring_names:
            yield name, cache.row_nbytes(name)


def read_blocks(cache: KVCache, name: str, slot: int, n: int) -> Array:
    """The first `n` blocks of a slot, uint8 [n, bytes of a block]: equal on every backend.

    Rings have none: what of them is needed is copied with the recurrent states (`KVCache.copied_states`).
    """
    return cache.read_rows(name, cache.blocks_of(slot)[:n]).reshape(n, -1)


def write_blocks(cache: KVCache, slot: int, blocks: Mapping[str, Array], threads: int) -> None:
    """Make the first blocks of a slot, which has reserved them, those of uint8 [n, bytes of a block] by array; in host memory on
    so many threads."""
    rows = cache.blocks_of(slot)

    def write(name: str) -> None:
        cache.write_rows(name, rows[: len(blocks[name])], blocks[name])

    on_host = all(isinstance(cache.states[name], np.ndarray) for name in blocks)
    for_each(write, list(blocks), threads if on_host else 1)


def for_each(call: Callable[[str], object], names: Sequence[str], threads: int) -> None:
    """Call a function of each name, split among threads: a task per name would take 40 us."""
    if threads == 1:
        for name in names:
            call(name)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda i: for_each(call, names[i::threads], 1), range(threads)))

"""Cache of compiled kernels with two levels of keys.

The first key covers a kernel's sources, constants and target, and is known without tracing. It maps to the second key, a hash of
the compiler's input (text, triple, CPU features, version, options), which maps to the object code. Kernels with equal text share
one object. Processes may build the same object concurrently; both results are valid.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from camshaft.store.files import digest_of
from camshaft.store.objects import ObjectStore

_SECOND = re.compile(rb"[0-9a-f]{64}")
# Placeholder for a kernel's symbol in text whose second key, which determines the symbol, is not known yet.
UNNAMED = "camshaft_unnamed_kernel"


def symbol_of(second: str) -> str:
    """The function name in the object with this second key, unique among all objects of a process."""
    return f"camshaft_{second[:24]}"


@dataclass(frozen=True)
class CachedKernel:
    """Object code, its second key, and whether it was built just now."""

    second: str
    data: bytes
    built: bool


@dataclass(frozen=True)
class KernelCache:
    """`keys` maps first keys to second keys; `objects` maps second keys to object code."""

    keys: ObjectStore
    objects: ObjectStore

    def get_or_build(
        self, first: str, source: Callable[[], str], options: str, build: Callable[[str], bytes]
    ) -> CachedKernel:
        """Return the object by its first key, else by the second (the hash of `source()` and `options`), else build and store
        it. A function called UNNAMED in the text is renamed to its `symbol_of`. Raises StoreError on I/O errors."""
        known = self.second(first)
        data = None if known is None else self.object(known)
        if known is not None and data is not None:
            return CachedKernel(known, data, False)
        text = source()
        second = digest_of(text, options)
        data = None if second == known else self.object(second)
        built = data is None
        if data is None:
            data = build(text.replace(UNNAMED, symbol_of(second)))
            self.objects.put(second, data)
        self.keys.put(first, second.encode())
        return CachedKernel(second, data, built)

    def second(self, first: str) -> str | None:
        """The second key (64 hex digits) for a first key, or None."""
        data = self.keys.get(first)
        return data.decode() if data is not None and _SECOND.fullmatch(data) else None

    def object(self, second: str) -> bytes | None:
        """The object of a second key, or None if it is missing, damaged or evicted."""
        return self.objects.get(second)

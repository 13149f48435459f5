"""KernelCache: compiled kernels by two keys, each object kept once. Between objects.py and the backends that compile.

The first key stands for a kernel's sources, constants and target, and is known without tracing; the second is a hash of what the
compiler is given: text, triple, CPU features, version, options. Under the first lies the second, under the second the object, so
that kernels which come to the same text share one. Two processes may make the same object at once: either's is right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from camshaft.store.objects import ObjectStore

_SECOND = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True)
class KernelCache:
    """`keys` has second keys by first ones, `objects` has objects by second ones."""

    keys: ObjectStore
    objects: ObjectStore

    def second(self, first: str) -> str | None:
        """The second key (64 hex digits) that a first one leads to, None where it is not known."""
        found = self.keys.get(first)
        return found.decode() if found is not None and _SECOND.fullmatch(found) else None

    def object(self, second: str) -> bytes | None:
        """The object of a second key, None where it was never made, is damaged, or was evicted."""
        return self.objects.get(second)

    def keep(self, second: str, data: bytes) -> None:
        """Keeps an object. StoreError when it cannot be written."""
        self.objects.put(second, data)

    def link(self, first: str, second: str) -> None:
        """Has the first key lead to the second. StoreError when it cannot be written."""
        self.keys.put(first, second.encode())

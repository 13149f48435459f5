"""KernelCache: compiled kernels by two keys, each object kept once.

The first key stands for a kernel's sources, constants and target, and is known without tracing; the second is a hash of what the
compiler is given: text, triple, CPU features, version, options. Under the first lies the second, under the second the object, so
that kernels which come to the same text share one. Two processes may make the same object at once: either's is right.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from camshaft.store.objects import ObjectStore

_SECOND = re.compile(rb"[0-9a-f]{64}")
# Stands for a kernel's symbol while its second key, which the symbol follows from, is not known.
UNNAMED = "camshaft_unnamed_kernel"


def symbol_of(second: str) -> str:
    """The name that a kernel's function has in the object of its second key: no two objects of a process share one."""
    return f"camshaft_{second[:24]}"


@dataclass(frozen=True)
class Found:
    """An object with its second key, and whether it had to be built."""

    second: str
    data: bytes
    built: bool


@dataclass(frozen=True)
class KernelCache:
    """`keys` has second keys by first ones, `objects` has objects by second ones."""

    keys: ObjectStore
    objects: ObjectStore

    def get_or_build(self, first: str, source: Callable[[], str], options: str, build: Callable[[str], bytes]) -> Found:
        """The object by its first key, else by the second, which is of `source()` and `options`, else built from that text and
        kept. A function called UNNAMED in the text gets its `symbol_of`. StoreError when it cannot be read or written."""
        known = self.second(first)
        data = None if known is None else self.object(known)
        if known is not None and data is not None:
            return Found(known, data, False)
        text = source()
        second = hashlib.sha256(f"{text}|{options}".encode()).hexdigest()
        data = None if second == known else self.object(second)
        built = data is None
        if data is None:
            data = build(text.replace(UNNAMED, symbol_of(second)))
            self.keep(second, data)
        self.link(first, second)
        return Found(second, data, built)

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

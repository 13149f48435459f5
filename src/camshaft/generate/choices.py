"""Check the options of a LanguageModel and resolve 'auto'."""

from __future__ import annotations

import sys

from camshaft.dtypes import DType, bf16, f16, f32
from camshaft.errors import ContextError, SettingError
from camshaft.settings import setting, settings

# Option -> whether the inputs of quantized matmuls are quantized to 8 bits.
ACTIVATIONS = {"auto": True, "q8": True, "f32": False}
# Option -> dtype or block format of the KV cache.
KV_CACHES: dict[str, DType | str] = {"f16": f16, "bf16": bf16, "f32": f32, "q8_0": "Q8_0", "q4_0": "Q4_0"}


def activations_of(name: str) -> str:
    """Resolve 'auto' by the setting; return a name of ACTIVATIONS. Raises SettingError for another name."""
    name = settings().activations if name == "auto" else name
    if name not in ACTIVATIONS:
        raise SettingError(f"activations {name!r}; wanted one of {', '.join(ACTIVATIONS)}")
    return name


def kv_cache_of(name: str, activations: str) -> str:
    """Resolve 'auto' by the setting, else to f16, or f32 with f32 activations; return a name of KV_CACHES.

    Raises SettingError for another name.
    """
    name = settings().kv_cache if name == "auto" else name
    if name == "auto":
        return "f16" if ACTIVATIONS[activations] else "f32"
    if name not in KV_CACHES:
        raise SettingError(f"kv_cache {name!r}; wanted one of auto, {', '.join(KV_CACHES)}")
    return name


def check_sizes(context: int, sessions: int) -> None:
    """Raise SettingError unless both are positive integers, ContextError if positions would exceed 31 bits."""
    if any(type(n) is not int or n < 1 for n in (context, sessions)):
        raise SettingError(f"context {context!r}, sessions {sessions!r}; wanted whole numbers from 1 up")
    if context * sessions >= 1 << 31:  # positions and rows of the cache are i32
        raise ContextError(
            f"{sessions} sessions with a context of {context} tokens; wanted fewer than 2^31 tokens in all"
        )


def backend_of(name: str | None) -> str | None:
    """The checked backend name, or None if any may be used."""
    if name is None and setting("backend") is None and "camshaft.selection.override" not in sys.modules:
        return None  # no override is possible: skip importing most of camshaft
    from camshaft.selection.override import check_override, get_backend_override

    return get_backend_override() if name is None else check_override(name)

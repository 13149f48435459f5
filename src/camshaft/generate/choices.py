"""What a language model is opened with: each choice checked, and what 'auto' stands for."""

from __future__ import annotations

import sys

from camshaft.dtypes import DType, bf16, f16, f32
from camshaft.errors import ContextError, SettingError
from camshaft.settings import setting, settings

# Whether the inputs of quantized products are quantized to 8 bits.
ACTIVATIONS = {"auto": True, "q8": True, "f32": False}
# What a KV cache may be kept in.
KV_CACHES: dict[str, DType | str] = {"f16": f16, "bf16": bf16, "f32": f32, "q8_0": "Q8_0", "q4_0": "Q4_0"}


def activations_of(asked: str) -> str:
    """A name of ACTIVATIONS: what was asked, else the setting's. SettingError for another."""
    found = settings().activations if asked == "auto" else asked
    if found not in ACTIVATIONS:
        raise SettingError(f"activations {found!r}; wanted one of {', '.join(ACTIVATIONS)}")
    return found


def kv_cache_of(asked: str, activations: str) -> str:
    """A name of KV_CACHES: what was asked, else what the setting says, else f16, or f32 beside f32 activations. SettingError."""
    found = settings().kv_cache if asked == "auto" else asked
    if found == "auto":
        return "f16" if ACTIVATIONS[activations] else "f32"
    if found not in KV_CACHES:
        raise SettingError(f"kv_cache {found!r}; wanted one of auto, {', '.join(KV_CACHES)}")
    return found


def check_sizes(context: int, sessions: int) -> None:
    """SettingError for what is no number of tokens or sessions, ContextError for more than positions can count."""
    if any(type(n) is not int or n < 1 for n in (context, sessions)):
        raise SettingError(f"context {context!r}, sessions {sessions!r}; wanted whole numbers from 1 up")
    if context * sessions >= 1 << 31:  # positions and rows of the cache are i32
        raise ContextError(f"{sessions} sessions with a context of {context} tokens; they hold up to 2^31 in all")


def backend_of(asked: str | None) -> str | None:
    """The backend to run on, checked; None where the choice is free."""
    if asked is None and setting("backend") is None and "camshaft.selection.override" not in sys.modules:
        return None  # nobody asked for one, and to look whether it is proved takes most of camshaft
    from camshaft.selection.override import check_override, get_backend_override

    return get_backend_override() if asked is None else check_override(asked)

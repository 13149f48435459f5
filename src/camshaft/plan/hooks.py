"""Functions of observe/ and tune/ that plans call by name; each module is imported when its function is first called.

`profile` is ExecutionPlan.profile. `tune_graphs` measures kernels before they are chosen; `measure_at_exit` lets a background
process measure nodes (`Used`, `used_in`), which then saves unchanged cached plans again (`store_state`, `carry_over`,
`SavedPlans`). If settings ask for instrumented runs, `lowered` may replace thunks before memory is planned, and `built` a bound
plan. camshaft/__init__.py fills the table: plan/ cannot import modules that come after it.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing takes 10 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_modules: dict[str, str] = {}


def provide(modules: dict[str, str]) -> None:
    """Sets the module of each function name."""
    _modules.update(modules)


def hook(name: str) -> Callable[..., Any]:
    """Returns the function of that name."""
    found: Callable[..., Any] = getattr(import_module(_modules[name]), name)
    return found

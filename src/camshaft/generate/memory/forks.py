"""Models whose locks are new in a forked child, where another thread of the parent may have locked them."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

models: weakref.WeakSet[LanguageModel] = weakref.WeakSet()


def _renew_locks() -> None:
    for model in list(models):
        model.lock, model._making_grammars = threading.RLock(), threading.Lock()
        model._grammars = None  # its thread is the parent's
        if "plans" in vars(model):
            model.plans.cache.slots.after_fork()
        if model.vision is not None:
            model.vision.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)

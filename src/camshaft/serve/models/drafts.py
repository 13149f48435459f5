"""The draft models of a server: one in memory for all its models that name the same file and run it alike."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from camshaft.generate.engine.draft_followers import MOST_DRAFTED
from camshaft.generate.generation import Closing
from camshaft.generate.language_model import LanguageModel
from camshaft.generate.options import DEFAULT_CONTEXT, DEFAULT_SESSIONS
from camshaft.models.files.pull import resolve_model
from camshaft.process import ForkLock

if TYPE_CHECKING:
    from camshaft.serve.models.spec import ModelSpec

_ALIKE = ("backend", "threads", "activations", "kv_cache")  # options of a model that its draft model has too


@dataclass
class _Open:
    """A draft model in memory, and how many models use it."""

    lm: LanguageModel
    n_users: int = 0


@dataclass
class DraftLease(Closing):
    """The use of a draft model by one model, until `close`, which may be called twice; the last one releases it."""

    key: Hashable
    lm: LanguageModel
    _of: SharedDrafts
    _is_over: bool = False

    def close(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._of.leave(self.key)


@dataclass
class SharedDrafts:
    """The draft models of some models, which open and close them in any thread. One that several share has the largest of their
    contexts, and slots for the one that answers most requests at once: beyond them, answers are not drafted."""

    specs: Sequence[ModelSpec]
    _open: dict[Hashable, _Open] = field(default_factory=dict)
    _lock: ForkLock = field(default_factory=ForkLock)

    def take(self, spec: ModelSpec) -> DraftLease:
        """The draft model of a spec that has one, loaded if it is not in memory. Raises what LanguageModel raises."""
        key = draft_key(spec)
        with self._lock:
            if key not in self._open:
                self._open[key] = _Open(self._loaded(spec, key))
            self._open[key].n_users += 1
            return DraftLease(key, self._open[key].lm, self)

    def _loaded(self, spec: ModelSpec, key: Hashable) -> LanguageModel:
        sharing = [each.options for each in self.specs if each.draft_model is not None and draft_key(each) == key]
        context = max(each.get("context", DEFAULT_CONTEXT) for each in sharing)
        sessions = min(MOST_DRAFTED, max(each.get("sessions", DEFAULT_SESSIONS) for each in sharing))
        assert spec.draft_model is not None
        return LanguageModel(spec.draft_model, context=context, sessions=sessions, **_shared_options(spec.options))

    def leave(self, key: Hashable) -> None:
        """Count a user less, and release the model after the last one."""
        with self._lock:
            self._open[key].n_users -= 1
            if not self._open[key].n_users:
                self._open.pop(key).lm.close()


def draft_key(spec: ModelSpec) -> Hashable:
    """Returns the key of models that share one draft model: its file and options."""
    assert spec.draft_model is not None
    return "draft", str(resolve_model(spec.draft_model).resolve()), *sorted(_shared_options(spec.options).items())


def _shared_options(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in _ALIKE if name in options}

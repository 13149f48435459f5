"""FrontModel: what reads requests and writes answers needs of a model, whose weights other processes have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from camshaft.extent import Extent
from camshaft.generate.language_model import LanguageModel
from camshaft.generate.model_plans import PROMPT_TOKENS
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.models.config import read_config
from camshaft.models.files.pull import resolve_model
from camshaft.process import ForkLock


@dataclass
class FrontSlots:
    """The slots of all replicas by number, in place of a KV cache."""

    n_slots: int
    _used: set[int] = field(default_factory=set)

    def open_slot(self) -> int | None:
        """The lowest free number; None if all are used."""
        free = next((i for i in range(self.n_slots) if i not in self._used), None)
        if free is not None:
            self._used.add(free)
        return free

    def close_slot(self, slot: int) -> None:
        """Make a number free."""
        self._used.remove(slot)


@dataclass(frozen=True)
class _FrontPlans:
    cache: FrontSlots
    prompt_tokens: Extent
    is_uneven: bool = False  # the replica that runs a request asks its own plans


class FrontModel(LanguageModel):
    """A model's tokenizer, chat template and configuration. It has no plans, so it can do nothing but read and write.

    n_slots: the slots of all replicas together."""

    def __init__(self, path_or_name: str, *, context: int, n_slots: int) -> None:
        """Raises as LanguageModel."""
        self.name, self.lock, self._closed = path_or_name, ForkLock(), False
        self._grammars, self._making_grammars, self.vision = None, ForkLock(), None  # images are refused
        self._model_file = open_model_file(resolve_model(path_or_name))
        self._file = self._model_file.file
        try:
            self.config = read_config(self._file.metadata)
            if self.config.is_bounded:
                context = min(context, self.config.context_length)
            self.context, self.tokenizer = context, self._model_file.tokenizer()
        except BaseException:
            self._file.close()
            raise
        prompt_tokens = Extent("tokens", min(PROMPT_TOKENS, context))
        self.plans = cast(Any, _FrontPlans(FrontSlots(n_slots), prompt_tokens))

    def close(self) -> None:
        """Release the file; may be called twice."""
        self._closed = True
        self._file.close()

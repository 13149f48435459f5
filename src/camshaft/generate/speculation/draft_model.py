"""A draft model: a smaller model with the same vocabulary proposes the next tokens (Leviathan et al., 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from camshaft.errors import ModelError, shortened
from camshaft.generate.sampling.sampler import Sampler
from camshaft.generate.session import Session

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel


def check_draft(draft: LanguageModel, lm: LanguageModel) -> None:
    """Raise ModelError unless both models have the same tokens."""
    ours, theirs = lm.tokenizer.vocabulary.tokens, draft.tokenizer.vocabulary.tokens
    if len(ours) == len(theirs) and all(a == b for a, b in zip(ours, theirs, strict=True)):
        return
    first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    where = f"{len(theirs)} tokens" if first is None else f"token {first} {shortened(theirs[first], 20)!r}"
    wanted = f"{len(ours)}" if first is None else f"{shortened(ours[first], 20)!r}"
    raise ModelError(
        f"the draft model {shortened(draft.name, 60)} has another vocabulary ({where}; wanted {wanted}), and cannot draft"
    )


def follow(own: Sampler | None, sampler: Sampler, context: int) -> Sampler:
    """A sampler without grammar that draws what comes next as `sampler` would: `own` if it has followed this one before."""
    own = own or Sampler(sampler.sampling, context, sampler.breakers)
    own.seed, own.step, own.mu = sampler.seed, sampler.step, sampler.mu
    return own


class DraftSession:
    """A session of the draft model that follows the text of a session of the main model.

    Its tokens are drawn as the checked model will draw them: with the same options, seed and step, so that the same random number
    meets both distributions. The nearer these are, the more often the tokens are equal; what is checked decides alone."""

    def __init__(self, draft: LanguageModel) -> None:
        self._draft = draft
        self._session, self._rests = Session(draft, waits=True, goes_back=False), False
        self._sampler: Sampler | None = None
        self._of: Sampler | None = None

    def prepare(self) -> None:
        """Take a slot of the draft model. The caller holds no lock."""
        if self._rests and not self._session.wake():
            self._session = Session(self._draft, waits=True, goes_back=False)
        self._rests = False
        self._session.take_slot()

    def draft(self, tokens: Sequence[int], sampler: Sampler, most: int) -> list[int]:
        """Up to `most` tokens after `tokens`; none where the draft model's context is full."""
        most = min(most, self._draft.context - len(tokens))
        if most <= 0:
            return []
        own = self._follow(sampler)
        draw = self._draft.samplers.alone(own)
        with self._draft.lock:
            self._session.replace(tokens)
            self._session.process_pending()
            self._session.mark()  # what follows may be wrong
            found: list[int] = []
            while len(found) < most:
                self._session.process_pending()
                token = draw(self._session.history)
                if not 0 <= token < self._draft.tokenizer.n_vocab:  # NaN, or a logit without a token
                    break
                found.append(token)
                self._session.append(token)
        return found

    def _follow(self, sampler: Sampler) -> Sampler:
        known = self._sampler if self._of is sampler else None
        self._sampler, self._of = follow(known, sampler, self._draft.context), sampler
        return self._sampler

    def rest(self) -> None:
        """Let others take the slot when they need one."""
        self._session.rest()
        self._rests = True

    def close(self) -> None:
        """Free the slot; may be called twice."""
        self._session.close()

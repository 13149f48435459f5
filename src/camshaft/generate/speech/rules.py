"""Which token may come next: what Whisper's decoding allows (Radford et al., 2022), as masks over logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.generate.speech.tokens import SpeechTokens

Array = np.ndarray[Any, Any]
_NEVER = -np.inf


@dataclass(frozen=True)
class Rules:
    """`never` ids are out, `blank` ids are not the first. With `timestamps`, times come in pairs but before the end, never go
    back, and begin at most `first_limit` steps after the window's start; a time comes where times together are likelier than
    each text token. Without, no times come."""

    tokens: SpeechTokens
    never: Array
    blank: Array
    timestamps: bool
    first_limit: int

    def apply(self, logits: Array, chosen: Sequence[int]) -> None:
        """Set the logits f32 [vocab] of tokens that may not follow the `chosen` ones to minus infinity, in place."""
        if not chosen:
            logits[self.blank] = _NEVER
        logits[self.never] = _NEVER
        logits[self.tokens.last_timestamp + 1 :] = _NEVER
        if not self.timestamps:
            logits[self.tokens.first_timestamp :] = _NEVER
            return
        self._keep_order(logits, chosen)
        self._prefer_times(logits)

    def _keep_order(self, logits: Array, chosen: Sequence[int]) -> None:
        first = self.tokens.first_timestamp
        if not chosen:
            logits[:first] = _NEVER
            logits[first + self.first_limit + 1 :] = _NEVER
            return
        ends_in_time = chosen[-1] >= first
        is_pair = len(chosen) < 2 or chosen[-2] >= first
        if ends_in_time:  # after a pair of times: text; after one time: a second one or the end
            logits[slice(first, None) if is_pair else slice(0, self.tokens.end)] = _NEVER
        latest = next((i for i in reversed(chosen) if i >= first), None)
        if latest is not None:
            logits[first : latest + (0 if ends_in_time and not is_pair else 1)] = _NEVER

    def _prefer_times(self, logits: Array) -> None:
        """Leave only times where their probabilities' sum exceeds that of every other token."""
        first = self.tokens.first_timestamp
        times, text = logits[first:], logits[:first].max()
        top = times.max()
        if top > _NEVER and top + np.log(np.exp(times - top).sum()) > text:
            logits[:first] = _NEVER

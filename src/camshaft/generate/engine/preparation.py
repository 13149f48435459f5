"""Which plans an engine makes before requests wait for them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from camshaft.generate.model_plans import MAX_DECODE_SEQUENCES
from camshaft.generate.sampling.form import SamplingForm
from camshaft.generate.speculation.pace import MOST_ROWS
from camshaft.generate.stored.plans_ahead import PlansAhead

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel


def plan_names(lm: LanguageModel, n_requests: int) -> Iterator[str]:
    """The plans that an engine runs for up to `n_requests` requests, in the order in which a growing number of requests needs
    them; without that for one prompt, which is made when the model is opened."""
    if lm.plans.is_uneven:
        yield "rows"  # of every prompt
    yield "single"
    if n_requests > 1 and not lm.plans.is_uneven:
        yield "rows"  # of prompts that end in one step
    most = min(n_requests, MAX_DECODE_SEQUENCES, lm.plans.logit_rows.bound)
    yield from (f"decode.{1 << i}" for i in range(1, (most - 1).bit_length() + 1))


def prepare_draft(draft: LanguageModel) -> None:
    """Make the plans by which a draft model drafts."""
    with draft.lock:
        for name in plan_names(draft, MOST_ROWS):
            if name != "rows":
                draft.plans.make(name)
        draft.samplers.prepare(SamplingForm())


def ahead(lm: LanguageModel, *, speculates: bool) -> PlansAhead:
    """Makes the plans of an engine, from `start` on. With drafts, a run has several tokens of few requests."""
    n_slots = lm.plans.cache.n_slots
    names = plan_names(lm, max(n_slots, MOST_ROWS) if speculates else n_slots)
    return PlansAhead(
        [partial(_make_samplers, lm), *(partial(lm.plans.make, name) for name in names)], "several requests"
    )


def _make_samplers(lm: LanguageModel) -> None:
    with lm.lock:  # every request waits for this one anyway
        lm.check_open()
        lm.samplers.prepare(SamplingForm())

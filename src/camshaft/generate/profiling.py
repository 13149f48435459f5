"""Profiles of a language model's two plans, for a prompt and for one token after it. For `camshaft profile`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from camshaft.errors import SettingError
from camshaft.generate.benchmark import Step, english
from camshaft.observe.profile import Profile

if TYPE_CHECKING:
    from camshaft.generate.language_model import LanguageModel

PHASES = ("prompt", "generate", "both")


def profile_model(
    lm: LanguageModel, prompt_tokens: int, phase: str, runs: int, step: Step = lambda done, total: None
) -> dict[str, Profile]:
    """Profiles by title: reading `prompt_tokens` (the last run of them, where they take several), and generating the token after
    them; `phase` is one of PHASES. Each run is the same one over again, in a session of its own. Sampling is not in it."""
    if phase not in PHASES:
        raise SettingError(f"--phase {phase}; wanted {', '.join(PHASES)}")
    found: dict[str, Profile] = {}
    ids = english(lm, prompt_tokens)
    wanted = {"prompt": phase != "generate", "generate": phase != "prompt"}
    total, done = sum(wanted.values()), 0
    step(done, total)
    plan, single = lm.plans.prompt if prompt_tokens > 1 else lm.plans.single, lm.plans.single
    with lm.lock, lm.session() as session:
        session.process(
            ids
        )  # by the plans that were just asked for, and so ground: kept ones tell nothing of themselves
        if wanted["prompt"]:
            found[f"prompt of {prompt_tokens} {'token' if prompt_tokens == 1 else 'tokens'}"] = plan.profile(runs=runs)
            step(done := done + 1, total)
        if wanted["generate"]:
            session.process(ids[:1])
            found[f"the token after {prompt_tokens}"] = single.profile(runs=runs)
            step(done + 1, total)
    return found

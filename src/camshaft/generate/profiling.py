"""Profile a language model's plans for a prompt and for one generated token."""

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
    """Return profiles by title: processing `prompt_tokens` tokens (the last chunk if there are several), and generating the
    token after them. `phase` is one of PHASES. Every run repeats the same step in one session; sampling is not included."""
    if phase not in PHASES:
        raise SettingError(f"--phase {phase}; wanted {', '.join(PHASES)}")
    profiles: dict[str, Profile] = {}
    ids = english(lm, prompt_tokens)
    wanted = {"prompt": phase != "generate", "generate": phase != "prompt"}
    total, done = sum(wanted.values()), 0
    step(done, total)
    plan, single = lm.plans.prompt if prompt_tokens > 1 else lm.plans.single, lm.plans.single
    with lm.lock, lm.session() as session:
        # Asking for `plan` above made these compiled plans: cached ones cannot be profiled.
        session.process(ids)
        if wanted["prompt"]:
            profiles[f"prompt of {prompt_tokens} {'token' if prompt_tokens == 1 else 'tokens'}"] = plan.profile(
                runs=runs
            )
            step(done := done + 1, total)
        if wanted["generate"]:
            session.process(ids[:1])
            profiles[f"the token after {prompt_tokens}"] = single.profile(runs=runs)
            step(done + 1, total)
    return profiles

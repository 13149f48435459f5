"""The form of a sampling plan: what it depends on. All else of a Sampling is a value in each run."""

from __future__ import annotations

from camshaft.dataclass import dataclass
from camshaft.generate.sampling.parameters import Sampling


@dataclass(frozen=True)
class SamplingForm:
    """The number of tokens in each list, 0 where there is none, and which filters there are.

    Numbers are powers of two, so that few plans serve many options.

    biased: tokens with a logit_bias; those with a presence or frequency penalty too, unless repeat_penalty comes between.
    recent: tokens with the repeat penalty.
    counted: tokens with a presence or frequency penalty after the repeat penalty.
    repeated: the text in which dry looks for repetitions.
    """

    biased: int = 0
    recent: int = 0
    counted: int = 0
    repeated: int = 0
    top_n_sigma: bool = False
    typical: bool = False
    xtc: bool = False
    mirostat: bool = False
    masked: bool = False

    @property
    def has_filters(self) -> bool:
        """Whether the temperature comes after top_p, with filters between them."""
        return self.top_n_sigma or self.typical or self.xtc


def window(last_n: int, context: int) -> int:
    """The number of recent tokens that an option means: -1 is all of the context."""
    return context if last_n < 0 else min(last_n, context)


def form_of(
    sampling: Sampling, context: int, *, has_long_breakers: bool = False, is_masked: bool = False
) -> SamplingForm:
    """The form of the plan for `sampling`. `has_long_breakers` if some of dry's breakers are several tokens, `is_masked` if a
    grammar says which tokens may be drawn."""
    n_recent = window(sampling.repeat_last_n, context)
    n_counted = n_recent if sampling.has_counts else 0
    n_repeated = window(sampling.dry_penalty_last_n, context) if sampling.has_dry else 0
    together = 0 if sampling.has_penalty else n_counted
    return SamplingForm(
        biased=_padded(len(sampling.logit_bias) + together),
        recent=_padded(n_recent if sampling.has_penalty else 0),
        counted=_padded(n_counted - together),
        repeated=_padded(n_repeated * 2 if has_long_breakers else n_repeated),
        top_n_sigma=sampling.has_top_n_sigma,
        typical=sampling.has_typical,
        xtc=sampling.has_xtc,
        mirostat=sampling.has_mirostat,
        masked=is_masked,
    )


def _padded(n: int) -> int:
    """The smallest power of two that is at least `n`; 0 for 0."""
    return 1 << (n - 1).bit_length() if n else 0

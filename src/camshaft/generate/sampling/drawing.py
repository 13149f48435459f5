"""Drawing: the samplers, grammars and log probabilities of one model; what LanguageModel has of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from camshaft.errors import SettingError
from camshaft.generate.generation import TokenLogprob
from camshaft.generate.grammar.grammar import Grammar
from camshaft.generate.grammar.matcher import GrammarCompiler
from camshaft.generate.options import GenerateOptions
from camshaft.generate.sampling.breakers import BreakerFinder, Breakers
from camshaft.generate.sampling.parameters import Sampling
from camshaft.generate.sampling.sampler import Sampler, SamplerPlans, log_probabilities
from camshaft.models.config import ModelConfig
from camshaft.process import ForkLock
from camshaft.text.tokenizer import Tokenizer


class Drawing:
    """Picks tokens from a model's logits."""

    config: ModelConfig
    context: int
    tokenizer: Tokenizer
    lock: ForkLock
    samplers: SamplerPlans
    _making_grammars: ForkLock
    _grammars: GrammarCompiler | None

    def end_tokens(self, options: GenerateOptions) -> frozenset[int]:
        """The ids of the tokens that end the text."""
        return frozenset() if options.ignore_eos else self.tokenizer.eos_ids

    def sampler(self, sampling: Sampling, grammar: Grammar | None = None) -> Sampler:
        """A sampler over this model's logits. Raises SettingError if a biased token is not in the vocabulary, and GrammarError or
        MissingExtraError for a grammar that cannot be used."""
        foreign = next((i for i in sampling.logit_bias if i >= self.config.vocab_size), None)
        if foreign is not None:
            last = self.config.vocab_size - 1
            raise SettingError(f"Sampling logit_bias={{{foreign}: ...}}: wanted ids of tokens from 0 to {last}")
        matcher = None if grammar is None else self.grammars.compile(grammar)  # up to seconds, in which others generate
        with self.lock:
            breakers = self._breakers.find(tuple(sampling.dry_sequence_breakers)) if sampling.has_dry else Breakers()
        return Sampler(sampling, self.context, breakers, matcher)

    def renew(self) -> None:
        """Make the grammars anew, in a forked child: their thread is the parent's."""
        self._grammars = None

    @property
    def grammars(self) -> GrammarCompiler:
        """Returns the factory of grammar matchers for this model's vocabulary."""
        with self._making_grammars:
            self._grammars = self._grammars or GrammarCompiler(self.tokenizer, self.config.vocab_size)
            return self._grammars

    @cached_property
    def _breakers(self) -> BreakerFinder:
        return BreakerFinder(self.tokenizer)

    def token_logprob(self, row: int, token: int, n_top: int) -> TokenLogprob:
        """The log probability of a token drawn from a row of the last run's logits, and those of the `n_top` most probable."""
        drawn, *top = [
            TokenLogprob(i, self.tokenizer.spelling(i), logprob)
            for i, logprob in log_probabilities(self.samplers.logits_of(row), token, n_top)
        ]
        return replace(drawn, top=tuple(top))

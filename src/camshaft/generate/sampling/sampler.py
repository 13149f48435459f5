"""Sample tokens on the CPU, with small plans over the logits, which are copied there from other devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from camshaft.errors import GrammarError, LogitsError
from camshaft.extent import Extent
from camshaft.generate.sampling.breakers import Breakers
from camshaft.generate.sampling.form import (
    NO_TOKEN,
    SamplingForm,
    counted,
    form_of,
    last,
    padded,
    recent_tokens,
    text_to_repeat,
    window,
)
from camshaft.generate.sampling.parameters import Sampling
from camshaft.ops.spec import Dim
from camshaft.plan.cached.cached_plan import CachedPlan

if TYPE_CHECKING:
    from camshaft.generate.grammar.matcher import Matcher
    from camshaft.generate.stored.plan_cache import PlanCache
    from camshaft.plan.execution_plan import ExecutionPlan
    from camshaft.plan.memory.device_memory import DeviceArray

    Plan: TypeAlias = ExecutionPlan | CachedPlan

Array = np.ndarray[Any, Any]
_FINITE = np.finfo(np.float32)
MOST_PLANS = 32  # that are in memory; another form takes the place of the one that was not used for longest
# A token that another filter removed has a probability of 0, and is not to count as one that xtc finds.
_LEAST_XTC_THRESHOLD = 1e-30


class SamplerPlans:
    """Compiles a plan per form of sampling. Greedy sampling is a temperature of 0."""

    def __init__(self, logits: Array | DeviceArray, backend: str | None, threads: int, plan_cache: PlanCache) -> None:
        self._logits, self._backend, self._threads, self._plan_cache = logits, backend, threads, plan_cache
        self._rows = Extent("rows", logits.shape[0])
        self._plans: dict[tuple[SamplingForm, Dim], Plan] = {}  # the last used one last

    def alone(self, sampler: Sampler) -> Callable[[Sequence[int]], int]:
        """The function that draws the sampler's next token from the first row of `logits`, -1 if one is NaN, with the preceding
        tokens. Compiles the plan."""
        self._plan(sampler.form, 1)

        def draw(history: Sequence[int]) -> int:
            token = sampler.forced()
            if token != NO_TOKEN:
                return token
            plan = self._plan(sampler.form, 1)
            sampler.fill(plan, 0, history)
            plan.bound.run()
            return sampler.drawn(plan, 0)

        return draw

    def prepare(self, form: SamplingForm) -> None:
        """Compile, or load, the plan by which `draw` draws for samplers of a form."""
        self._plan(form, self._rows)

    def draw(self, samplers: Sequence[Sampler], histories: Sequence[Sequence[int]]) -> list[int]:
        """Draw a token from each of the first rows of `logits` with its sampler, -1 from a row with a NaN; `histories` are the
        preceding tokens."""
        tokens = [sampler.forced() for sampler in samplers]
        free = [row for row, token in enumerate(tokens) if token == NO_TOKEN]
        for form in {samplers[row].form for row in free}:
            plan = self._plan(form, self._rows)
            plan.set_extent(self._rows, len(samplers))
            # The plan computes the rows of other forms too, with what was last there.
            own = [row for row in free if samplers[row].form == form]
            for row in own:
                samplers[row].fill(plan, row, histories[row])
            plan.bound.run()
            for row in own:
                tokens[row] = samplers[row].drawn(plan, row)
        return tokens

    def logits_of(self, row: int) -> Array:
        """A copy of one row of `logits`, f32 [vocab]."""
        rows: Array = self._logits if isinstance(self._logits, np.ndarray) else self._logits.read(row + 1)
        return np.array(rows[row])

    def _plan(self, form: SamplingForm, rows: Dim) -> Plan:
        key = form, rows
        if key in self._plans:
            self._plans[key] = self._plans.pop(key)
        else:
            while len(self._plans) >= MOST_PLANS:
                self._plans.pop(next(iter(self._plans))).close()
            name, memory = f"sampler.{form}.{rows}", {"logits": self._logits}
            cached = self._plan_cache.get(name, lambda: memory)
            if cached is None:
                compiled = self._compile(form, rows)
                self._plan_cache.add(name, compiled, memory)
            self._plans[key] = cached or compiled
        return self._plans[key]

    def _compile(self, form: SamplingForm, rows: Dim) -> ExecutionPlan:
        from camshaft.generate.sampling.graph import sampling_graph  # not needed if the plans are cached
        from camshaft.plan.compile import compile

        # A row of 49152 is drawn from in 20 us on a core, and the copy takes as long; one workgroup of an H200 took 500 or more.
        place = None if isinstance(self._logits, np.ndarray) else "cpu"
        graph = sampling_graph(form, rows, self._logits.shape[1], place)
        threads = 1 if rows == 1 else self._threads
        return compile(graph, backend=self._backend, threads=threads, memory={"logits": self._logits})

    def close(self) -> None:
        """Release every plan."""
        for plan in self._plans.values():
            plan.close()


class Sampler:
    """The random draws of one generation. Equal seeds and logits give equal tokens."""

    def __init__(self, sampling: Sampling, context: int, breakers: Breakers, matcher: Matcher | None = None) -> None:
        """`context` is the most tokens that there may be, `breakers` are dry's, `matcher` is at the beginning of a grammar."""
        self.form = form_of(sampling, context, has_long_breakers=bool(breakers.longer), is_masked=matcher is not None)
        self._matcher = matcher
        self.sampling, self.breakers = sampling, breakers
        self.last_n, self.dry_last_n = (
            window(n, context) for n in (sampling.repeat_last_n, sampling.dry_penalty_last_n)
        )
        self.biases = list(sampling.logit_bias.items())
        self.bias_rows: dict[int, Array] = {}  # ids and numbers as a plan reads them, where no penalty changes them
        self.seed, self.step = sampling.start_seed(), 0
        self.mu = 2.0 * sampling.mirostat_ent  # mirostat's state

    def fill(self, plan: Plan, row: int, history: Sequence[int]) -> None:
        """Write this sampler's row of every input except the logits; other samplers share the plan."""
        for name, values in plan.inputs.items():
            if name in _VALUES:
                values[row] = _VALUES[name](self, history, values)
            elif name != "logits":
                values[row] = getattr(self.sampling, name)

    def forced(self) -> int:
        """The next token, if the grammar lets no other one follow and nothing depends on its logit; else NO_TOKEN."""
        if self._matcher is None or self.form.biased or self.form.mirostat:
            return NO_TOKEN
        token = self._matcher.forced()
        if token is None:
            return NO_TOKEN
        self.step += 1
        self._matcher.consume(token)
        return token

    def drawn(self, plan: Plan, row: int) -> int:
        """Returns the token that the plan sampled for this sampler in a row, and advances its random numbers."""
        self.step += 1
        token = int(plan.outputs["token"][row])
        if self._matcher is not None and token >= 0:
            self._matcher.consume(token)
        if self.form.mirostat:
            surprise = -float(plan.outputs["logprob"][row]) / log(2)
            self.mu -= self.sampling.mirostat_lr * (surprise - self.sampling.mirostat_ent)
        return token

    @property
    def is_complete(self) -> bool:
        """Whether the grammar lets nothing follow."""
        return self._matcher is not None and self._matcher.is_complete

    def mask(self) -> Array:
        """The tokens that the grammar lets follow, as bits."""
        assert self._matcher is not None
        return self._matcher.mask()

    def check(self, token: int, position: int, n_generated: int, of: str = "") -> int:
        """Return a drawn token. Raises LogitsError if it is -1: the logits have a NaN; GrammarError if the grammar cannot be
        followed."""
        if token < 0:
            raise LogitsError(
                f"{of}the model computed NaN logits for the token at position {position} (after {n_generated} generated tokens): "
                "its file may be damaged, or numbers overflow, which f32 activations may avoid"
            )
        if self._matcher is not None and self._matcher.error:
            raise GrammarError(f"{of}the grammar failed after {n_generated} tokens: {self._matcher.error:.200}")
        return token


def _bias_row(sampler: Sampler, history: Sequence[int], which: int, rest: float, memory: Array) -> Array:
    if sampler.sampling.has_counts and not sampler.form.counted:
        return padded(sampler.biases + _counted(sampler, history), which, rest, memory)
    if which not in sampler.bias_rows:
        sampler.bias_rows[which] = padded(sampler.biases, which, rest, memory)
    return sampler.bias_rows[which]


def _counted(sampler: Sampler, history: Sequence[int]) -> list[tuple[int, float]]:
    sampling = sampler.sampling
    return counted(last(history, sampler.last_n), sampling.presence_penalty, sampling.frequency_penalty)


# Input -> its value for one row, from the sampler, the preceding tokens and the input's memory; others are fields of Sampling.
# Those named no_... have the value of an option that is off: the plan applies the option itself elsewhere.
_VALUES: dict[str, Callable[[Sampler, Sequence[int], Array], Any]] = {
    "temperature": lambda s, history, memory: 0.0 if s.sampling.greedy else s.sampling.temperature,
    "no_temperature": lambda s, history, memory: 1.0,
    "no_top_k": lambda s, history, memory: 0,
    "no_top_p": lambda s, history, memory: 1.0,
    "no_min_p": lambda s, history, memory: 0.0,
    "seed": lambda s, history, memory: seed_words(s.seed, s.step),
    "mu": lambda s, history, memory: s.mu,
    "xtc_threshold": lambda s, history, memory: max(s.sampling.xtc_threshold, _LEAST_XTC_THRESHOLD),
    "recent": lambda s, history, memory: recent_tokens(history, s.last_n, memory.shape[1]),
    "repeated": lambda s, history, memory: text_to_repeat(last(history, s.dry_last_n), s.breakers, memory.shape[1]),
    "mask": lambda s, history, memory: s.mask(),
    "biased": lambda s, history, memory: _bias_row(s, history, 0, NO_TOKEN, memory),
    "bias": lambda s, history, memory: _bias_row(s, history, 1, 0.0, memory),
    "counted": lambda s, history, memory: padded(_counted(s, history), 0, NO_TOKEN, memory),
    "count_bias": lambda s, history, memory: padded(_counted(s, history), 1, 0.0, memory),
}


def log_probabilities(logits: Array, token: int, n: int) -> list[tuple[int, float]]:
    """(id, natural logarithm of the probability) of `token`, then of the `n` most probable tokens, ties by the smaller id.

    `logits` f32 [vocab] are the model's, before temperature and filters; infinite ones count as the largest finite number.
    """
    x = np.clip(logits.astype(np.float64), _FINITE.min, _FINITE.max)
    shifted = x - x.max()
    logs = shifted - np.log(np.exp(shifted).sum())
    n = min(n, len(x))
    least = np.partition(x, len(x) - n)[len(x) - n] if n else np.inf
    candidates = np.flatnonzero(x >= least)
    best = candidates[np.argsort(-x[candidates], kind="stable")][:n]
    return [(int(i), float(logs[i])) for i in (token, *best)]


def seed_words(seed: int, step: int) -> tuple[int, int, int]:
    """One row of the op sample's seed input: the seed's low and high words, and the step."""
    mask = 2**32 - 1
    return seed & mask, seed >> 32 & mask, step & mask

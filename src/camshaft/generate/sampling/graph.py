"""The graph from logits to a token: penalties, filters, temperature and the draw. Imported only when a plan is compiled."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from camshaft.generate.grammar.matcher import WORD
from camshaft.generate.sampling.form import SamplingForm
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.ops.spec import Dim

# dtype and further axes of each input but the lists of tokens. Those named no_... have the value of an option that is off.
_INPUTS: dict[str, tuple[str, tuple[int, ...]]] = {
    **dict.fromkeys(("temperature", "no_temperature", "top_p", "no_top_p", "min_p", "no_min_p"), ("f32", ())),
    **dict.fromkeys(("top_k", "no_top_k", "dry_allowed_length"), ("i32", ())),
    **dict.fromkeys(("repeat_penalty", "dry_multiplier", "dry_base", "typical_p", "top_n_sigma"), ("f32", ())),
    **dict.fromkeys(("xtc_probability", "xtc_threshold", "mu"), ("f32", ())),
    "seed": ("u32", (3,)),
}


class _Inputs:
    """Inputs of the graph, made where they are first used."""

    def __init__(self, graph: Graph, rows: Dim) -> None:
        self._graph, self._rows = graph, rows
        self._made: dict[str, Tensor] = {}

    def __call__(self, *names: str) -> list[Tensor]:
        return [self._one(name) for name in names]

    def listed(self, name: str, n: int, dtype: str = "i32") -> Tensor:
        """A list of `n` tokens, or of numbers that belong to them, for each row."""
        return self._graph.input(name, (self._rows, n), dtype)

    def column(self, name: str) -> Tensor:
        """An input with an axis for the tokens."""
        column: Tensor = self._one(name).reshape((self._rows, 1))
        return column

    def _one(self, name: str) -> Tensor:
        if name not in self._made:
            dtype, axes = _INPUTS[name]
            self._made[name] = self._graph.input(name, (self._rows, *axes), dtype)
        return self._made[name]


def sampling_graph(form: SamplingForm, rows: Dim, vocab_size: int, device: str | None = None) -> Graph:
    """The graph from logits [rows, vocab_size] and the sampling parameters to `token` [rows], -1 for a row with a NaN; its nodes
    are placed on `device` if one is given.

    With mirostat also to `logprob` [rows], the logarithm of the token's probability among those that it keeps.
    """
    graph = Graph()
    with graph.on(device) if device else nullcontext():
        _add_draws(graph, form, rows, vocab_size)
    return graph


def _add_draws(graph: Graph, form: SamplingForm, rows: Dim, vocab_size: int) -> None:
    inputs = _Inputs(graph, rows)
    logits = _penalized(graph.input("logits", (rows, vocab_size), "f32"), form, inputs)
    mask = inputs.listed("mask", -(-vocab_size // WORD), "u32") if form.masked else None
    if mask is not None and (form.mirostat or form.has_filters):  # after all that could add to the logit of a token
        logits = F.token_mask(logits, mask)
    if form.mirostat:
        scaled = logits / inputs.column("temperature")
        kept = F.mirostat(scaled, *inputs("mu"))
        off = inputs("no_temperature", "no_top_k", "no_top_p", "no_min_p", "seed")
        token, logprob = F.softmax_sample(kept, *off)
        graph.output("logprob", logprob.reshape((rows,)))
        graph.output("token", token.reshape((rows,)))
    elif form.has_filters:
        # top_k changes nothing any more, but shows the kernel where to look.
        off = inputs("temperature", "top_k", "no_top_p", "no_min_p", "seed")
        graph.output("token", F.sample(_filtered(logits, form, inputs), *off))
    else:
        settings = inputs("temperature", "top_k", "top_p", "min_p", "seed")
        token = F.sample(logits, *settings) if mask is None else F.masked_sample(logits, mask, *settings)
        graph.output("token", token)


def _penalized(logits: Any, form: SamplingForm, inputs: _Inputs) -> Any:
    if form.biased:
        logits = F.logit_bias(logits, inputs.listed("biased", form.biased), inputs.listed("bias", form.biased, "f32"))
    if form.recent:
        logits = F.repeat_penalty(logits, inputs.listed("recent", form.recent), *inputs("repeat_penalty"))
    if form.counted:
        logits = F.logit_bias(
            logits, inputs.listed("counted", form.counted), inputs.listed("count_bias", form.counted, "f32")
        )
    if form.repeated:
        settings = inputs("dry_multiplier", "dry_base", "dry_allowed_length")
        logits = F.dry(logits, inputs.listed("repeated", form.repeated), *settings)
    return logits


def _filtered(logits: Any, form: SamplingForm, inputs: _Inputs) -> Any:
    if form.top_n_sigma:
        logits = F.top_n_sigma(logits, *inputs("top_n_sigma"))
    if form.typical:
        logits = F.top_k_top_p(logits, *inputs("top_k", "no_top_p", "no_min_p"))
        logits = F.typical_p(logits, *inputs("typical_p"))
    logits = F.top_k_top_p(logits, *inputs("top_k", "top_p", "min_p"))
    if form.xtc:
        logits = F.xtc(logits, *inputs("xtc_probability", "xtc_threshold", "seed"))
    return logits

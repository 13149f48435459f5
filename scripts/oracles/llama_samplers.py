"""llama.cpp's sampler chain, through llama-cpp-python, on logits of the caller."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import llama_cpp
import numpy as np

from camshaft import Sampling


class Chain:
    """The samplers of llama.cpp's programs before the draw, in their default order, over the vocabulary of a GGUF file."""

    def __init__(self, path: Path) -> None:
        self._llama = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        self.n_vocab = self._llama.n_vocab()

    def probabilities(self, logits: np.ndarray, sampling: Sampling, history: Sequence[int]) -> np.ndarray:
        """What the chain leaves of float32 logits [n], n up to the vocabulary: float64 [n]."""
        chain = self._made(sampling, len(logits))
        for token in history:
            llama_cpp.llama_sampler_accept(chain, token)
        tokens = (llama_cpp.llama_token_data * len(logits))()
        for i, logit in enumerate(logits.tolist()):
            tokens[i].id, tokens[i].logit = i, logit
        left = llama_cpp.llama_token_data_array(tokens, len(logits), -1, False)
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(left))
        x = np.full(len(logits), -np.inf)
        for i in range(left.size):
            x[left.data[i].id] = left.data[i].logit
        llama_cpp.llama_sampler_free(chain)
        e = np.exp(x - x.max())
        return e / e.sum()

    def _made(self, s: Sampling, n: int) -> llama_cpp.llama_sampler_p:
        c = llama_cpp
        breakers = [text.encode() for text in s.dry_sequence_breakers]
        biases = (c.llama_logit_bias * len(s.logit_bias))(*s.logit_bias.items())
        vocabulary = self._llama._model.vocab
        made = [c.llama_sampler_init_logit_bias(n, len(biases), biases)]
        if s.mirostat:
            made += [c.llama_sampler_init_temp(s.temperature)]
            made += [c.llama_sampler_init_mirostat_v2(1, s.mirostat_ent, s.mirostat_lr)]
        else:
            made += [
                c.llama_sampler_init_penalties(
                    n, s.repeat_last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
                ),
                c.llama_sampler_init_dry(
                    vocabulary,
                    s.dry_multiplier,
                    s.dry_base,
                    s.dry_allowed_length,
                    s.dry_penalty_last_n,
                    (ctypes.c_char_p * len(breakers))(*breakers),
                    len(breakers),
                ),
                c.llama_sampler_init_top_n_sigma(s.top_n_sigma),
                c.llama_sampler_init_top_k(s.top_k),
                c.llama_sampler_init_typical(s.typical_p, 0),
                c.llama_sampler_init_top_p(s.top_p, 0),
                c.llama_sampler_init_min_p(s.min_p, 0),
                c.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 0, 1),
                c.llama_sampler_init_temp_ext(s.temperature, 0.0, 1.0),
            ]
        chain = c.llama_sampler_chain_init(c.llama_sampler_chain_default_params())
        for sampler in made:
            c.llama_sampler_chain_add(chain, sampler)
        return chain

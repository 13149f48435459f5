"""Experts: a model's mixtures of experts and how tokens choose them, read from metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from camshaft.errors import ModelError

if TYPE_CHECKING:
    from camshaft.models.families import Family
    from camshaft.models.file_keys import Keys

# GGUF's numbers of gating functions; the third is the softmax of the chosen experts alone: that of all, divided by their sum.
_SCORES = {1: "softmax", 2: "sigmoid", 3: "softmax"}
_SIGMOID, _OF_CHOSEN = 2, 3
# The experts of Llama 4 Maverick, which does not norm q and k. GGUF has no key for that; readers go by this number.
WITHOUT_NORMS = 128
# The layers and tokens of GLM-4.7-Flash, whose first files are those of a family without sigmoid and do not name it.
_GLM_FLASH = ((47, 154880), (48, 154880))


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: `n_used` of `n` experts of width `dim` per token, and a shared one of `shared_dim` (0: none).

    They are chosen by their scores, the `score` of a router's logits, plus a bias where the file has one; of `groups` only from
    the `top_groups` whose `group_top` best have the largest sum. The weights are the scores, divided by their sum if
    `normalizes`, times `scale`. With a `latent` the experts see a projection
    to that width, and their sum is projected back.
    """

    n: int
    n_used: int
    dim: int
    shared_dim: int = 0
    score: str = "softmax"
    normalizes: bool = True
    scale: float = 1.0
    groups: int = 1
    top_groups: int = 1
    latent: int = 0

    @property
    def group_top(self) -> int:
        """How many experts speak for their group: the best by softmax (DeepSeek V2), two by sigmoid (V3)."""
        return 2 if self.score == "sigmoid" else 1


def read_experts(keys: Keys, family: Family, n_layers: int, vocab_size: int) -> Experts | None:
    """The mixture of experts of a file that has one. Raises ModelError, naming the key, for an impossible value."""
    n = keys.count("expert_count")
    if not n:
        return None
    n_used, dim = keys.size("expert_used_count"), _width(keys)
    if family.weighs_inputs and n_used != 1:
        raise ModelError(f"the key '{keys.architecture}.expert_used_count' is {n_used}; wanted 1 in this family")
    if n_used > n:
        raise ModelError(f"the key '{keys.architecture}.expert_used_count' is {n_used}; wanted at most the {n} experts")
    if family.expert_score == "sparse_mixer" and n_used != 2:
        raise ModelError(f"the key '{keys.architecture}.expert_used_count' is {n_used}; wanted 2 in this family")
    gating = _gating(keys, n_layers, vocab_size)
    groups, top_groups = _groups(keys, n, n_used)
    shared = keys.count("expert_shared_count", family.shared_experts) * dim
    return Experts(
        n,
        n_used,
        dim,
        keys.count("expert_shared_feed_forward_length", shared),
        family.expert_score if family.expert_score == "sparse_mixer" else _SCORES.get(gating, family.expert_score),
        keys.flag("expert_weights_norm", family.normalizes_experts or gating == _OF_CHOSEN),
        keys.at_least_0("expert_weights_scale", 1.0) or 1.0,
        groups,
        top_groups,
        keys.count("moe_latent_size"),
    )


def expert_layers(keys: Keys, n_layers: int) -> tuple[bool, ...]:
    """Which layers have experts: from the first that is not dense, every `interleave_moe_layer_step`-th, or the second of every
    `moe_every_n_layers`, if that is above 0."""
    apart = keys.count("moe_every_n_layers")
    if apart:
        return tuple(layer % apart == 1 for layer in range(n_layers))
    dense = keys.count("leading_dense_block_count")
    every = keys.size("interleave_moe_layer_step", 1)
    return tuple(layer >= dense and (layer + 1) % every == 0 for layer in range(n_layers))


def _width(keys: Keys) -> int:
    named = f"{keys.architecture}.expert_feed_forward_length" in keys.metadata
    return keys.size("expert_feed_forward_length" if named else "feed_forward_length")


def _gating(keys: Keys, n_layers: int, vocab_size: int) -> int:
    gating = keys.count("expert_gating_func")
    if not gating and (n_layers, vocab_size) in _GLM_FLASH:
        return _SIGMOID
    if gating not in (0, *_SCORES):
        raise ModelError(
            f"the key '{keys.architecture}.expert_gating_func' is {gating}; wanted 1 (softmax), 2 (sigmoid) or 3 (softmax of "
            "the chosen)"
        )
    return gating


def _groups(keys: Keys, n: int, n_used: int) -> tuple[int, int]:
    """The number of groups of experts, and of those to choose from."""
    groups = keys.count("expert_group_count", 1) or 1
    if groups == 1:
        return 1, 1
    if n % groups or n // groups < 2:
        name = f"{keys.architecture}.expert_group_count"
        raise ModelError(f"the key {name!r} is {groups}; wanted groups of 2 or more that share the {n} experts equally")
    top_groups = keys.size("expert_group_used_count")
    if top_groups > groups or top_groups * (n // groups) < n_used:
        raise ModelError(
            f"the key '{keys.architecture}.expert_group_used_count' is {top_groups}; wanted at most the {groups} groups, with "
            f"{n_used} experts or more"
        )
    return groups, top_groups

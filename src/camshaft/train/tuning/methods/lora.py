"""LoRA (Hu et al., 2021) on a GGUF model: y = x W^T + scale (x A^T) B^T, where W stays as it is in the file.

The model's own decoder is the training graph. A quantized W is multiplied as it is, and unpacked for the gradient of x alone.
The scale is alpha / rank, of rsLoRA (Kalajdzievski, 2023) alpha / sqrt(rank). DoRA (Liu et al., 2024) learns a magnitude of each
row too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import ModelError
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor
from camshaft.models.adapters.adapted import AdaptedCheckpoint, Change
from camshaft.models.adapters.dora import learned_factors, squared_norms
from camshaft.models.checkpoint import Checkpoint
from camshaft.train.tuning.methods.tuned import TunedModel

Array = np.ndarray[Any, Any]
Matrices = dict[str, dict[str, Any]]
# The matrices of attention, of feed-forwards and shared experts, and of recurrent layers, by their names in a block of the file.
TARGETS = (
    *("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "attn_gate", "attn_q_a", "attn_q_b", "attn_kv_a_mqa"),
    *("ffn_gate", "ffn_up", "ffn_down", "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"),
    *("ffn_latent_down", "ffn_latent_up", "ssm_in", "ssm_out", "ssm_x", "ssm_dt", "ssm_ba", "ssm_alpha", "ssm_beta"),
    *("ssm_f_a", "ssm_f_b", "ssm_g_a", "ssm_g_b", r"shortconv\.in_proj", r"shortconv\.out_proj"),
    *(f"time_mix_{part}" for part in ("receptance", "key", "value", "gate", "output")),
    *(f"channel_mix_{part}" for part in ("receptance", "key", "value")),
)
# Stacks of the experts' matrices, and the routers, which get an adapter only where a target is their whole name.
STACKS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_up_exps")
ROUTERS = ("ffn_gate_inp",)
_KNOWN = re.compile(rf"(blk\.\d+\.({'|'.join((*TARGETS, *STACKS, *ROUTERS))}))\.weight")


@dataclass(frozen=True)
class LoraConfig:
    """`rank` and `alpha` of the adapters, the matrices that get one (patterns of names such as attn_q; a router only by its whole
    name, ffn_gate_inp), the seed of A; with
    `rslora` the products of great ranks are scaled down less, with `dora` the norms of changed rows are learned too. `dropout`
    is the share of an adapter's inputs that are 0 in a step of training, others for each matrix and step."""

    rank: int = 8
    alpha: float = 16.0
    targets: tuple[str, ...] = ("*",)
    seed: int = 0
    rslora: bool = False
    dora: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise ModelError(f"LoRA: got rank={self.rank!r:.60}; wanted 1 or more")
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, (int, float)) or not 0 < self.alpha < 1e9:
            raise ModelError(f"LoRA: got alpha={self.alpha!r:.60}; wanted a number above 0")
        if not isinstance(self.targets, tuple) or not all(isinstance(t, str) for t in self.targets):
            raise ModelError(f"LoRA: got targets={self.targets!r:.60}; wanted patterns of names such as attn_q")
        if type(self.seed) is not int or self.seed < 0:
            raise ModelError(f"LoRA: got seed={self.seed!r:.60}; wanted 0 or more")
        if isinstance(self.dropout, bool) or not isinstance(self.dropout, (int, float)) or not 0 <= self.dropout < 1:
            raise ModelError(f"LoRA: got dropout={self.dropout!r:.60}; wanted a number from 0 to below 1")
        for name in ("rslora", "dora"):
            if not isinstance(getattr(self, name), bool):
                raise ModelError(f"LoRA: got {name}={getattr(self, name)!r:.60}; wanted True or False")

    @property
    def scale(self) -> float:
        """What the adapter's product is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    @property
    def plain_alpha(self) -> float:
        """The alpha with which alpha / rank is the scale, as in GGUF files."""
        return self.alpha * math.sqrt(self.rank) if self.rslora else self.alpha


class LoraModel(TunedModel):
    """A model with adapters, which are what is learned.

    Raises ModelError as TunedModel, for targets that the file does not have, and a rank that no matrix has.
    """

    def __init__(self, path_or_name: str | Path, config: LoraConfig | None = None) -> None:
        self.lora, self._squared = config or LoraConfig(), dict[str, Array]()
        super().__init__(path_or_name)

    def prepare(self) -> None:
        """Finds the matrices that get an adapter."""
        self.names = _adapted(self.file.tensors, self.lora.targets)
        shapes = {name: self.file.tensors[f"{name}.weight"].shape for name in self.names}
        stacks = [name for name, shape in shapes.items() if len(shape) > 2]
        if self.lora.dora and stacks:
            raise ModelError(f"LoRA: got dora=True for {stacks[0]}; wanted targets without experts' stacks, as attn_*")
        most = max(min(shape[-2:]) for shape in shapes.values())
        if self.lora.rank > most:
            raise ModelError(f"LoRA: got rank={self.lora.rank}; wanted at most {most}, the greatest that a matrix has")

    def adapters(self) -> Matrices:
        """New adapters by their matrices: `a` [rank, k] is drawn as the weights of a torch.nn.Linear, `b` [n, rank] is 0, of DoRA
        `m` [n] is the norm of each row. Of a stack of experts `a` and `b` are stacks."""
        rng, made = np.random.default_rng(self.lora.seed), {}
        for name in self.names:
            *stack, n, k = self.file.tensors[f"{name}.weight"].shape
            a = rng.uniform(-(k**-0.5), k**-0.5, (*stack, self.lora.rank, k)).astype(np.float32)
            made[name] = {"a": a, "b": np.zeros((*stack, n, self.lora.rank), np.float32)}
            if self.lora.dora:
                made[name]["m"] = np.sqrt(self._squares(name))
        return made

    def parameters(self) -> Matrices:
        """New adapters."""
        return self.adapters()

    def checkpoint(
        self, graph: Graph, parameters: Mapping[str, Mapping[str, Any]], seed: Tensor | None = None
    ) -> Checkpoint:
        """The file's tensors, with the adapters' products; with a seed, of inputs with dropout."""
        dropped = self._dropouts(seed) if seed is not None and self.lora.dropout else {}
        changes = {name: [self._change(name, parts, dropped.get(name))] for name, parts in parameters.items()}
        return AdaptedCheckpoint(self.file.tensors, graph, changes)

    def _dropouts(self, seed: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
        """The dropout of each matrix's inputs: its number is added to the seed's high 32 bits."""
        numbers = np.zeros((len(self.names), 3), np.uint32)
        numbers[:, 1] = np.arange(len(self.names))
        seeds = seed.reshape((1, 3)) + numbers

        def dropping(i: int) -> Callable[[Tensor], Tensor]:
            return lambda x: f.dropout(x, seeds[i], p=float(self.lora.dropout))

        return {name: dropping(i) for i, name in enumerate(self.names)}

    def _change(self, name: str, parts: Mapping[str, Any], dropped: Callable[[Tensor], Tensor] | None = None) -> Change:
        factors = None
        if "m" in parts:
            squares = self._squares(name)

            def factors(checkpoint: Checkpoint) -> Tensor:
                return learned_factors(checkpoint, name, parts, self.lora.scale, squares)

        return Change(parts["a"], parts["b"], self.lora.scale, factors=factors, dropped=dropped)

    def _squares(self, name: str) -> Array:
        """The squared norms of a matrix's rows."""
        if name not in self._squared:
            self._squared[name] = squared_norms(self.file.tensors[f"{name}.weight"].dequantize())
        return self._squared[name]


def _adapted(tensors: Mapping[str, Any], targets: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the matrices that get an adapter. ModelError for a pattern that none has."""
    found = [(match[1], match[2]) for name in tensors if (match := _KNOWN.fullmatch(name))]
    if not targets:
        raise ModelError("LoRA: got no target; wanted patterns of names such as attn_q")
    for pattern in targets:
        if not any(_matches(short, pattern) for _, short in found):
            known = ", ".join(dict.fromkeys(short for _, short in found))
            raise ModelError(f"LoRA: got the target {pattern!r:.60}, which no matrix has; wanted patterns of {known}")
    return tuple(name for name, short in found if any(_matches(short, pattern) for pattern in targets))


def _matches(short: str, pattern: str) -> bool:
    return short == pattern if short in ROUTERS else fnmatchcase(short, pattern)

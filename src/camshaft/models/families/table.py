"""The supported GGUF architectures with the function that builds each graph. A new model is a module and a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from camshaft.graph.graph import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.config import ModelConfig, architecture_name
from camshaft.models.families import llama, qwen2, qwen3
from camshaft.models.transformer import LayerCache, TokenBatch

Build = Callable[[ModelConfig, Checkpoint, TokenBatch, Sequence[LayerCache]], Tensor]


@dataclass(frozen=True)
class Architecture:
    """`name` is general.architecture in GGUF; `build` adds the model to a graph."""

    name: str
    build: Build


ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("llama", llama.build),
    "qwen2": Architecture("qwen2", qwen2.build),
    "qwen3": Architecture("qwen3", qwen3.build),
}


def architecture(metadata: Mapping[str, Any]) -> Architecture:
    """The architecture of a file. Raises ModelError, naming it, if it is not supported."""
    return ARCHITECTURES[architecture_name(metadata)]

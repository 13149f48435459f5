"""Compute importance matrices: run a text through a model in f32 and add up the squares of each weight's inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.dtypes import f32
from camshaft.errors import ContextError, LogitsError, SettingError, count
from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.graphs import ModelGraphs
from camshaft.generate.memory.kv_cache import KVCache
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.graph.node import Node
from camshaft.graph.passes.decompose import decompose
from camshaft.models.config import ModelConfig, read_config
from camshaft.models.files.imatrix import ImportanceMatrix
from camshaft.models.files.pull import resolve_model
from camshaft.plan.compile import compile
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.process import thread_count

Array = np.ndarray[Any, Any]
# Called with the number of chunks that are done, and of all.
Progress = Callable[[int, int], None]
CHUNK = 512
_PLAIN = ("matmul", "quantized_matmul")
_GROUPED = ("matmul_grouped", "quantized_matmul_grouped")


def importance_matrix(
    path_or_name: str | Path,
    text: str,
    *,
    dataset: str = "",
    chunk: int = CHUNK,
    chunks: int | None = None,
    threads: int | None = None,
    progress: Progress = lambda done, total: None,
) -> ImportanceMatrix:
    """The importance matrix of a model's layers on a text, in chunks of `chunk` tokens, each with an empty context.

    As in llama.cpp, the first token of each chunk is BOS where the model wants one, tokens after the last whole chunk and the
    output projection are left out. Raises SettingError for sizes that cannot be, ContextError for a text shorter than a chunk,
    ModelError for an unsupported model, LogitsError if the model computes NaN.
    """
    if type(chunk) is not int or chunk < 16:
        raise SettingError(f"imatrix: chunk={chunk!r:.60}; wanted 16 tokens or more")
    if chunks is not None and (type(chunks) is not int or chunks < 1):
        raise SettingError(f"imatrix: chunks={chunks!r:.60}; wanted 1 or more")
    opened = open_model_file(resolve_model(str(path_or_name)))
    with opened.file as file:
        config = _config(file, chunk)
        tokenizer = opened.tokenizer()
        ids = tokenizer.encode(text, parse_special=False)
        n = min(len(ids) // chunk, chunks or len(ids))
        if not n:
            raise ContextError(f"imatrix: the text has {count(len(ids), 'token')}; wanted at least a chunk of {chunk}")
        vocabulary = tokenizer.vocabulary
        bos = vocabulary.bos_id if vocabulary.add_bos else None
        with _taps(file, config, chunk, thread_count(threads)) as taps:
            for i in range(n):
                progress(i, n)
                part = ids[i * chunk : (i + 1) * chunk]
                taps.add(part if bos is None else [bos, *part[1:]])
            progress(n, n)
            return ImportanceMatrix(taps.sums, taps.counts, (dataset,) if dataset else (), n, chunk)


def _config(file: GGUFFile, chunk: int) -> ModelConfig:
    config = read_config(file.metadata)
    if chunk > config.context_length:
        raise ContextError(f"imatrix: chunks of {chunk} tokens; the model was trained on {config.context_length}")
    return config


@dataclass(frozen=True)
class _Tap:
    """The outputs `x`, the inputs of weights, or their sums of squares; with `experts`, the output of their numbers."""

    x: str
    names: tuple[str, ...]
    n_experts: int = 0
    experts: str = ""


class _Taps:
    """A plan of one chunk that gives the inputs of weights, and what they add up to."""

    def __init__(self, plan: ExecutionPlan, taps: tuple[_Tap, ...]) -> None:
        self._plan, self._taps = plan, taps
        self.sums: dict[str, Array] = {}
        self.counts: dict[str, Array] = {}

    def add(self, ids: list[int]) -> None:
        """Run a chunk and add its squares. LogitsError if one is not finite."""
        inputs = self._plan.inputs
        inputs["ids"][:], inputs["positions"][:], inputs["slots"][:] = ids, np.arange(len(ids)), 0
        if "lengths" in inputs:
            inputs["lengths"][:] = len(ids)
        self._plan.bound.run()
        for tap in self._taps:
            sums, counts = self._of(tap, len(ids))
            if not np.isfinite(sums).all():
                raise LogitsError(f"imatrix: the input of {tap.names[0]} is not finite")
            for name in tap.names:
                self.sums[name] = self.sums.get(name, np.float32(0)) + sums
                self.counts[name] = self.counts.get(name, np.float32(0)) + counts

    def _of(self, tap: _Tap, n_tokens: int) -> tuple[Array, Array]:
        """Sums f32 [matrices, k] and counts f32 [matrices] of this run."""
        found = self._plan.outputs[tap.x]
        if not tap.experts:
            return np.array(found, np.float32).reshape(1, -1), np.array([n_tokens], np.float32)
        chosen = np.asarray(self._plan.outputs[tap.experts])
        squares = np.square(np.asarray(found, np.float32))
        each = (
            squares.reshape(*chosen.shape, -1) if squares.ndim == 3 else np.repeat(squares[:, None], chosen.shape[1], 1)
        )
        sums = np.zeros((tap.n_experts, each.shape[-1]), np.float32)
        np.add.at(sums, chosen.reshape(-1), each.reshape(-1, each.shape[-1]))
        return sums, np.bincount(chosen.reshape(-1), minlength=tap.n_experts).astype(np.float32)


@contextmanager
def _taps(file: GGUFFile, config: ModelConfig, chunk: int, threads: int) -> Iterator[_Taps]:
    cache = KVCache(config, chunk, f32, 1)
    try:
        cache.reserve(cache.open_slot(), chunk)
        length = Extent("length", chunk)
        graph = ModelGraphs(file, config, cache, length).hidden_graph(chunk)
        if any(node.op.name == "moe_experts" for node in graph.nodes):
            graph = decompose(graph, lambda node: node.op.name == "moe_experts")
        taps = _tapped(graph)
        with compile(graph, threads=threads, activations="f32", memory=cache.states) as plan:
            if cache.has_keys:  # without attention no op reads the length
                plan.set_extent(length, chunk)
            yield _Taps(plan, taps)
    finally:
        cache.close()


def _tapped(graph: Graph) -> tuple[_Tap, ...]:
    """Adds the inputs of layers' weights to a graph's outputs: of matrices as sums of squares over the tokens."""
    names: dict[tuple[Tensor, Tensor | None], list[str]] = {}
    n_experts: dict[Tensor, int] = {}
    for node in graph.nodes:
        weight = _weight_of(node)
        if weight is None:
            continue
        chosen = node.inputs[2] if node.op.name in _GROUPED else None
        names.setdefault((node.inputs[0], chosen), []).append(weight.name)
        if chosen is not None:
            n_experts[chosen] = weight.spec.bounds[0]
    taps = []
    for i, ((x, chosen), weights) in enumerate(names.items()):
        if chosen is None:
            graph.output(f"tap.{i}", F.sum(F.multiply(x, x), axes=(0,)))
            taps.append(_Tap(f"tap.{i}", tuple(weights)))
        else:
            graph.output(f"tap.{i}", x)
            graph.output(f"tap.{i}.experts", chosen)
            taps.append(_Tap(f"tap.{i}", tuple(weights), n_experts[chosen], f"tap.{i}.experts"))
    return tuple(taps)


def _weight_of(node: Node) -> Tensor | None:
    """The weight of a layer that a node multiplies by; None of any other node."""
    if node.op.name not in (*_PLAIN, *_GROUPED) or len(node.inputs) < 2:
        return None
    weight = node.inputs[1]
    is_layers = weight.kind == "constant" and weight.name.startswith("blk.") and weight.name.endswith(".weight")
    return weight if is_layers else None

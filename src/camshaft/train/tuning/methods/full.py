"""Fine-tuning of a model's own weights: full, and quantization-aware (QAT), whose loss is that of the rounded weights.

Weights are f32 while they are learned, whatever the file has. Rounded weights pass gradients straight through (Bengio et al.,
2013; Jacob et al., 2018): the step sees dequantize(quantize(W)), the update changes W.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from camshaft.errors import FormatError, ModelError
from camshaft.formats.blocks import BlockFormat
from camshaft.formats.gguf.write import NewTensor, unsigned, values_of, write_gguf
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as f
from camshaft.graph.graph import Graph
from camshaft.graph.tensor import Tensor
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.file_tensors import is_rearranged
from camshaft.models.files.chosen_formats import formats_of
from camshaft.models.files.quantization_mix import Mix, mix_named
from camshaft.ops.quantize.round_trip import FORMATS as ROUNDED
from camshaft.train.tuning.methods.tuned import TunedModel

Array = np.ndarray[Any, Any]
_PART = 1 << 20  # elements that are encoded at once
_BLOCK_TYPE = "F16"  # of weights that the file has in blocks: most of what is learned is lost in few bits


class FullModel(TunedModel):
    """A model whose tensors are learned: those whose names without `.weight` or the layer match a pattern of `targets`.

    `file_type` is that of the file to write, as of `quantize`; None: blocks become F16, others stay as they are. With `rounds`
    the loss is that of weights rounded to that type. Raises ModelError as TunedModel, and for targets that the file does not
    have; FormatError for a type that is not known, or that `rounds` cannot have."""

    def __init__(
        self,
        path_or_name: str | Path,
        targets: tuple[str, ...] = ("*",),
        file_type: str | None = None,
        *,
        rounds: bool = False,
    ) -> None:
        self._targets, self._rounds = targets, rounds
        self._mix: Mix | None = None if file_type is None else mix_named(file_type)
        super().__init__(path_or_name)

    def prepare(self) -> None:
        """Finds the tensors that are learned, and the formats to write."""
        tensors = self.file.tensors
        known = {name: _short(name) for name in tensors if not is_rearranged(name)}
        for pattern in self._targets:
            if not any(fnmatchcase(short, pattern) for short in known.values()):
                some = ", ".join(dict.fromkeys(known.values()))
                raise ModelError(
                    f"fine-tuning: got the target {pattern!r:.60}, which no tensor has; wanted patterns of {some}"
                )
        chosen = (n for n, short in known.items() if any(fnmatchcase(short, p) for p in self._targets))
        self.names = tuple(chosen)
        self.formats = self._formats()
        self.rounded: dict[str, str] = {}
        if self._rounds:
            base = None if self._mix is None else self._mix.base
            if base not in ROUNDED:
                raise FormatError(f"fine-tuning: got the type {base} to round to; wanted {' or '.join(ROUNDED)}")
            self.rounded = {n: self.formats[n].name for n in self.names if self.formats[n].name in ROUNDED}

    def _formats(self) -> dict[str, BlockFormat]:
        """The format that each tensor is written in."""
        if self._mix is not None:
            return formats_of(self.file, self._mix)
        plain = formats_of(self.file, mix_named(_BLOCK_TYPE))
        return {
            name: plain[name] if name in self.names and not tensor.format.is_plain else tensor.format
            for name, tensor in self.file.tensors.items()
        }

    def parameters(self) -> dict[str, Array]:
        """The learned tensors as the file has them, f32."""
        return {name: self.file.tensors[name].dequantize().astype(np.float32) for name in self.names}

    def checkpoint(self, graph: Graph, parameters: Mapping[str, Any], seed: Tensor | None = None) -> Checkpoint:
        """The file's tensors, with the parameters in place of the learned ones. Nothing is dropped."""
        return LearnedCheckpoint(self.file.tensors, graph, parameters, self.rounded)

    def save(self, path: Path, parameters: Mapping[str, Array]) -> None:
        """Writes the model with these tensors, atomically. StoreError if it cannot be written."""
        values = values_of(self.file.metadata)
        if self._mix is not None:
            values |= {"general.file_type": unsigned(self._mix.file_type)}
        tensors = [
            NewTensor(t.name, t.shape, self.formats[t.name], _data_of(t, self.formats[t.name], parameters.get(t.name)))
            for t in self.file.tensors.values()
        ]
        write_gguf(path, values, tensors)


class LearnedCheckpoint(Checkpoint):
    """The file's tensors, some of which are parameters, f32, and of these some rounded to block formats."""

    def __init__(
        self,
        tensors: Mapping[str, FileTensor],
        graph: Graph,
        parameters: Mapping[str, Tensor],
        rounded: Mapping[str, str],
    ) -> None:
        super().__init__(tensors, graph)
        self._parameters, self._rounded = parameters, rounded

    def tensor(self, name: str, *shape: int) -> Tensor:
        """The named parameter or constant. Raises ModelError as Checkpoint does."""
        name = self.own(name)
        learned = self._parameters.get(name)
        if learned is None:
            return super().tensor(name, *shape)
        if learned.shape != shape:
            raise ModelError(f"tensor {name!r} has shape {list(learned.shape)}; wanted {list(shape)}")
        if name in self._rounded and name not in self._constants:
            self._constants[name] = f.quantize_dequantize_gguf(learned, format=self._rounded[name])
        return self._constants.get(name, learned)


def _short(name: str) -> str:
    """blk.3.attn_q.weight as attn_q, output_norm.weight as output_norm; biases keep their end."""
    parts = name.removesuffix(".weight").split(".")
    return ".".join(parts[2:] if parts[0] == "blk" and len(parts) > 2 else parts)


def _data_of(tensor: FileTensor, wanted: BlockFormat, learned: Array | None) -> Any:
    """What yields the tensor's bytes in a format, with learned values if there are some."""

    def parts() -> Iterator[Any]:
        if learned is None and wanted is tensor.format:
            yield tensor.data()
            return
        values = (tensor.dequantize() if learned is None else learned).reshape(-1, wanted.block_size)
        step = max(_PART // wanted.block_size, 1)
        try:
            for first in range(0, len(values), step):
                yield wanted.quantize(values[first : first + step])
        except FormatError as error:
            raise FormatError(f"{tensor.name}: {error}") from None

    return parts

"""VisionModel: an `mmproj` file opened to turn images into embeddings for a text model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from camshaft.dtypes import f32, i32
from camshaft.errors import LogitsError, ModelError
from camshaft.extent import Extent
from camshaft.formats.gguf.file import GGUFFile
from camshaft.generate.generation import Closing
from camshaft.generate.memory.cache_specs import BLOCK_TOKENS
from camshaft.generate.options import compiled_activations
from camshaft.generate.stored.file_plans import FilePlans
from camshaft.generate.stored.header_cache import open_model_file
from camshaft.generate.vision.tokens import Seeing, Span
from camshaft.models.config import ModelConfig
from camshaft.models.file_tensors import check_layers
from camshaft.models.vision.config import PREFIX, VisionConfig, line_of, read_vision
from camshaft.models.vision.images import Image
from camshaft.models.vision.positions import axes_of, axis_rows, grid_of, merged, patch_rows, position_rows, windows_of
from camshaft.models.vision.tiles import Tile, layout_of
from camshaft.ops.spec import TensorSpec
from camshaft.process import ForkLock

if TYPE_CHECKING:
    from camshaft.graph.graph import Graph

Array = np.ndarray[Any, Any]
_PLAN = "encoder"
# Bytes of embeddings of the images that were seen last: 40 of 1,088 tokens of 1,536 numbers.
KEPT_NBYTES = 256 << 20
_DIGEST_NBYTES = 32


class _Plans(FilePlans):
    """The plan of one tile's run: the keys and values that all layers share, their blocks, and the result."""

    def __init__(self, file: GGUFFile, config: VisionConfig, width: int, *, activations: str, threads: int) -> None:
        self.config = config
        self.patches = Extent("patches", -(-config.most_patches // BLOCK_TOKENS) * BLOCK_TOKENS)
        self.merged = Extent("merged", self.patches.bound)
        specs = memory_specs(config, self.patches.bound, self.merged.bound, width)
        super().__init__(file, f"vision|{config}|{self.patches}", specs, activations=activations, threads=threads)

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The memory of all specs, with blocks in order."""
        made = super().arrays
        for name in ("block_table", "window_block_table"):
            if name in made:
                made[name].flat[:] = np.arange(made[name].size)
        return made

    def graph(self, name: str) -> Graph:
        """The encoder's graph."""
        from camshaft.graph.graph import Graph
        from camshaft.models.checkpoint import Checkpoint
        from camshaft.models.vision.encoder import encoder, patch_inputs

        graph = Graph()
        states = {name: graph.state(name, spec) for name, spec in self.specs.items() if name != "embeddings"}
        batch = patch_inputs(graph, self.config, self.patches, self.merged, states)
        graph.output("embeddings", encoder(self.config, Checkpoint(self.file.tensors, graph), batch))
        return graph

    def uses(self, name: str) -> Iterable[str]:
        """All arrays."""
        return self.specs


class VisionModel(Closing):
    """A vision encoder and its projector. Thread-safe: calls run one at a time.

    Raises ModelError or FormatError for an unusable file, or one that is not of the text model."""

    def __init__(
        self,
        path: str | Path,
        text: ModelConfig,
        text_keys: Mapping[str, Any],
        text_name: str,
        *,
        threads: int,
        activations: str,
    ) -> None:
        self.name, self._lock, self._closed = str(path), ForkLock(), False
        self._file = open_model_file(path).file
        kind = compiled_activations(activations, self._file.tensors.values())
        try:
            self.config = config = read_vision(self._file.metadata)
            # Gemma 4 E2B and E4B, with embeddings of each layer, take images as they take texts.
            kind_of = config.row.bidirectional
            self._together = kind_of == "all" or (kind_of == "windows" and not text.per_layer_dim)
            _check_text(config, self.name, text, text_name, together=self._together)
            _check_line(line_of(self._file.metadata), self.name, line_of(text_keys), text_name)
            check_layers(PREFIX, config.n_layers, self._file.tensors, "v.blk")
        except BaseException:
            self._file.close()
            raise
        self._plans = _Plans(self._file, config, self.width, activations=kind, threads=threads)
        self._kept: OrderedDict[bytes, tuple[str | Span, ...]] = OrderedDict()

    @property
    def width(self) -> int:
        """The numbers of a token's embedding."""
        return self.config.out_dim * (1 + len(self.config.deepstack))

    @property
    def seeing(self) -> Seeing:
        """How the text model takes its tokens."""
        in_windows = self.config.row.bidirectional == "windows"
        return Seeing(self.width, self._together, 3 if self.config.row.axes else 0, in_windows)

    @property
    def marker(self) -> str:
        """The marker of an image in a prompt."""
        return self.config.row.marker

    @property
    def token(self) -> str:
        """The vocabulary's placeholder for each token of an image."""
        return self.config.row.token or self.marker

    @property
    def written(self) -> str:
        """An image in the prompt of a template without images: the marker with the text around it."""
        return self.config.row.written or self.marker

    def encode(self, image: Image) -> tuple[str | Span, ...]:
        """The text and the tokens of an image, in order. Images that were seen lately are not encoded again.

        Raises SettingError for one whose shape cannot be used, LogitsError if the encoder computes NaN."""
        with self._lock:
            if self._closed:
                raise ModelError(f"the vision model {self.name} is closed")
            found = self._kept.pop(image.digest, None)
            made = self._encoded(image) if found is None else found
            self._kept[image.digest] = made
            while len(self._kept) > 1 and sum(map(_nbytes, self._kept.values())) > KEPT_NBYTES:
                self._kept.popitem(last=False)
        return made

    def _encoded(self, image: Image) -> tuple[str | Span, ...]:
        pieces: list[str | Span] = []
        for n, piece in enumerate(layout_of(image.pixels, self.config)):
            if isinstance(piece, str):
                pieces.append(piece)
                continue
            columns = grid_of(piece.pixels, self.config)[1] // self.config.merge
            made = self._run(piece)
            rows = np.split(made, range(columns, len(made), columns)) if piece.between else [made]
            for k, part in enumerate(rows):
                digest = blake2b(image.digest + b"%d.%d" % (n, k), digest_size=_DIGEST_NBYTES).digest()
                pieces += [*([piece.between] if k else []), Span(part, digest, columns)]
        return tuple(pieces)

    def _run(self, tile: Tile) -> Array:
        """The embeddings of a tile, f32 [tokens, width]."""
        plans, config = self._plans, self.config
        plan = plans.plan(_PLAN)
        rows, columns = grid_of(tile.pixels, config)
        n, groups = rows * columns, merged(rows, columns, config.merge)
        given = {"patches": patch_rows(tile.pixels, config), "slots": 0, "positions": np.arange(n)}
        if config.row.positions == "axes":
            given["added"] = axis_rows(self._positions, rows, columns)
        elif config.row.positions:
            given["added"] = position_rows(self._positions, rows, columns, config)
        if config.row.rope:
            given["axes"] = axes_of(rows, columns)
        if config.row.windows:
            given["window_slots"], given["window_positions"], lengths = windows_of(rows, columns, config.window_side)
            plan.inputs["window_lengths"][:] = 1
            plan.inputs["window_lengths"][: len(lengths)] = lengths
        for name, values in given.items():
            plan.inputs[name][:n] = values
        for k, group in enumerate(groups):
            plan.inputs[f"merged.{k}"][: len(group)] = group
        plan.inputs["lengths"][:] = n
        plan.set_extent(plans.patches, n)
        plan.set_extent(plans.merged, groups.shape[1])
        plans.run(plan)
        made = plans.arrays["embeddings"][: groups.shape[1]].copy()
        if not np.isfinite(made).all():
            raise LogitsError(f"{self.name} computed an embedding that is not finite")
        return made

    @cached_property
    def _positions(self) -> Array:
        """The table of learned positions, f32 [positions, dim], or that of columns and rows, f32 [2, positions, dim]."""
        name, config = "v.position_embd.weight", self.config
        tensor, by_axes = self._file.tensors.get(name), config.row.positions == "axes"
        wanted = (2, config.most_side, config.dim) if by_axes else (config.grid**2, config.dim)
        shape = () if tensor is None else tuple(tensor.shape)
        if by_axes and len(shape) == 3:  # more places than images have are left out
            shape = (shape[0], min(shape[1], wanted[1]), shape[2])
        if tensor is None or shape != wanted:
            came = "is missing" if tensor is None else f"has shape {list(tensor.shape)}"
            raise ModelError(f"{self.name}: tensor {name!r} {came}; wanted {list(wanted)}")
        return tensor.dequantize().astype(np.float32)

    def close(self) -> None:
        """Release the plan and the file; may be called twice."""
        with self._lock:
            if not self._closed:
                self._plans.close()
                self._kept.clear()
            self._closed = True
            self._file.close()


def memory_specs(config: VisionConfig, patches: int, merged: int, width: int) -> dict[str, TensorSpec]:
    """The keys and values, the blocks of the whole image and of its windows, and the result of an encoder."""
    n_blocks, tables = patches // BLOCK_TOKENS, {"block_table": TensorSpec((1, patches // BLOCK_TOKENS), i32)}
    if config.row.windows:
        per_window = -(-(config.window_side**2) // BLOCK_TOKENS)
        tables["window_block_table"] = TensorSpec((config.most_windows, per_window), i32)
        n_blocks = max(n_blocks, config.most_windows * per_window)
    return tables | {
        "keys": TensorSpec((n_blocks, config.n_heads, config.head_dim, BLOCK_TOKENS), f32),
        "values": TensorSpec((n_blocks, config.n_heads, BLOCK_TOKENS, config.head_dim), f32),
        "embeddings": TensorSpec((merged, width), f32),
    }


def _check_text(config: VisionConfig, name: str, text: ModelConfig, text_name: str, *, together: bool) -> None:
    """Raise ModelError unless a vision file's embeddings are those that a text model takes."""
    wanted = "wanted the vision file (mmproj) of this model"
    if config.out_dim != text.dim:
        raise ModelError(f"{name} makes embeddings of {config.out_dim} numbers; {text_name} has {text.dim}: {wanted}")
    if len(config.deepstack) != text.deepstack:
        came = f"{len(config.deepstack)} layers of {name} go to layers of the text"
        raise ModelError(f"{came}; {text_name} takes {text.deepstack}: {wanted}")
    if config.row.axes != bool(text.sections):
        has = "rows and columns as positions" if config.row.axes else "no rows and columns as positions"
        raise ModelError(f"images of {name} have {has}, unlike {text_name} (rope.dimension_sections): {wanted}")
    if text.architecture not in config.row.texts:
        texts = " or ".join(config.row.texts)
        raise ModelError(
            f"{name} (projector {config.projector}) is for models of {texts}; {text_name} is of {text.architecture}: {wanted}"
        )
    least = min((options.window for options in text.layers if options.window), default=config.most_patches)
    if together and config.most_patches // config.merge**2 > least:
        tokens = config.most_patches // config.merge**2
        raise ModelError(f"images of {tokens} tokens; {text_name} has windows of {least}: wanted windows as long")


def _check_line(line: str, name: str, of_text: str, text_name: str) -> None:
    """Raise ModelError where both files name their line of models, and these differ."""
    if line and of_text and line != of_text:
        raise ModelError(
            f"{name} is of {line}; {text_name} is of {of_text}: wanted the vision file (mmproj) of this model"
        )


def _nbytes(pieces: tuple[str | Span, ...]) -> int:
    return sum(piece.rows.nbytes for piece in pieces if isinstance(piece, Span))

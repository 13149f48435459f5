"""The model files of the comparison: pulled, generated or requantized once, and cached; and the work of running them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.compare.random_model import SHAPES, make
from camshaft.formats.gguf.file import open_gguf
from camshaft.models.config import ModelConfig, read_config
from camshaft.models.families import family_name
from camshaft.models.files.pull import resolve_model
from camshaft.models.files.quantize import quantize
from camshaft.settings import settings
from camshaft.store.files import private_folder
from camshaft.text.tokenizer import Tokenizer

TEXT = "The river rose for three days, and on the fourth the miller carried his tools up to the loft and waited there. "
FOLDER = "compare"
Step = Callable[[int, int], None]
KINDS = {"F32": "f32", "F16": "bf16", "BF16": "bf16"}
"""The kind of peak for matmuls with these weights (f16 uses that of bf16); block formats use int8."""
LAST_TOKENS_ALONE = ("attn_output", "ffn_")
"""Parts of the last layer that a prompt computes only for its last token; their operations are negligible."""
Watch = Callable[[str], AbstractContextManager[Step]]
"""A context manager that shows the progress of a named long operation."""


@contextmanager
def quietly(title: str) -> Iterator[Step]:
    """Shows the title alone."""
    print(f"# {title}", file=sys.stderr)
    yield lambda done, total: None


@dataclass(frozen=True)
class Work:
    """A model's work, derived from its file. `read_nbytes`: weights read per token; `layer_weights`: number of weights applied
    to every prompt token, by kind of arithmetic; `ids`: a text to process."""

    path: Path
    config: ModelConfig
    read_nbytes: int
    layer_weights: Mapping[str, int]
    ids: tuple[int, ...]

    def text(self, n: int) -> list[int]:
        """Return `n` token ids."""
        return list((self.ids * (n // len(self.ids) + 1))[:n])

    def generate_nbytes(self, n: int, sequences: int = 1, after: int = 0) -> float:
        """Bytes per token when generating `n` tokens after a context of `after`: weights, shared by `sequences`, and keys and
        values (f16) at the mean length."""
        c = self.config
        return self.read_nbytes / sequences + 2.0 * c.n_layers * 2 * c.n_kv_heads * c.head_dim * (after + n / 2)

    def prompt_ops(self, n: int) -> dict[str, float]:
        """Operations of a prompt of `n` tokens by kind: two per weight and token, and causal attention in f32."""
        c = self.config
        ops = {kind: 2.0 * n * count for kind, count in self.layer_weights.items()}
        attention = 4.0 * c.n_layers * c.n_heads * c.head_dim * (n / 2) * n
        return {**ops, "f32": ops.get("f32", 0.0) + attention}


@cache
def work_of(path: Path) -> Work:
    """The work of a model, and token ids of a text."""
    with open_gguf(path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
        config = read_config(file.metadata, family_name(file.metadata), tokenizer.n_vocab)
        matrices = {name: t for name, t in file.tensors.items() if len(t.shape) == 2}
        tied = "output.weight" not in matrices
        read = sum(t.nbytes for name, t in matrices.items() if tied or name != "token_embd.weight")
        layers: Counter[str] = Counter()
        last = tuple(f"blk.{config.n_layers - 1}.{part}" for part in LAST_TOKENS_ALONE)
        for name, t in matrices.items():
            if name.startswith("blk.") and not name.startswith(last):
                layers[KINDS.get(t.format.name, "int8")] += t.shape[0] * t.shape[1]
        return Work(path, config, read, layers, tuple(tokenizer.encode(TEXT)))


def smollm2(watch: Watch) -> Path:
    """SmolLM2-135M-Instruct in Q4_1, pulled on first use."""
    with watch("pulling smollm2") as step:
        return resolve_model("smollm2", step).resolve()


def random_qwen(watch: Watch) -> Path:
    """A file of Qwen2-0.5B's shape in Q4_K_M with random weights: 397 MB, generated in about a minute."""
    path = _folder() / "qwen2-0.5b-random.Q4_K_M.gguf"
    if not path.is_file():
        with watch(f"making {path.name}") as step:
            make(SHAPES["qwen2-0.5b"], smollm2(watch), path, "Q4_K_M", step)
    return path


def requantized(file_type: str, pure: bool, watch: Watch) -> Path:
    """SmolLM2 in another file type."""
    path = _folder() / f"smollm2.{file_type}{'-pure' * pure}.gguf"
    if not path.is_file():
        with watch(f"making {path.name}") as step:
            quantize(smollm2(watch), path, file_type, pure=pure, progress=step)
    return path


def _folder() -> Path:
    folder = settings().cache_dir / FOLDER
    private_folder(folder)
    return folder

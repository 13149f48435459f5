"""Mutated model files, opened and run for one token: an answer or a CamshaftError of one line, never a crash or another error."""

from __future__ import annotations

import random
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft import LanguageModel
from camshaft.errors import CamshaftError
from camshaft.formats.gguf.file import open_gguf
from camshaft.formats.tensor import FileTensor
from camshaft.models.config import read_config
from camshaft.models.families import family_name
from camshaft.models.rope_scaling import read_scaling
from camshaft.text.chat import ChatTemplate
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.vocabulary import vocabulary_size
from tests.support.fixtures import TINY_MODELS, tiny_model

NUMBERS = [0, 1, 2, 3, 7, 8, 9, 12, 32, 64, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1]
FLOATS = [0.0, -1.0, float("nan"), float("inf"), 1e38, 1e-45]
TYPES = range(13)


class Mutator:
    """Changes the values of a file's header, their types, its tensor table, or any bytes, by a seeded generator."""

    def __init__(self, path: Path) -> None:
        self.data = path.read_bytes()
        with open_gguf(path) as file:
            # The vocabulary's strings are most of the header; change the other places as often.
            self.values = [(e.position, e.nbytes) for e in file.metadata.entries.values()]
            self.header_nbytes = file.header_nbytes
            last = max(entry[0] + entry[1] for entry in self.values)
            self.table = (last, file.header_nbytes - last)

    def mutant(self, rng: random.Random) -> bytes:
        """The file with one to three changes."""
        data = bytearray(self.data)
        for _ in range(rng.randint(1, 3)):
            rng.choice((self._value, self._value, self._type, self._table, self._byte, self._cut))(data, rng)
        return bytes(data)

    def _value(self, data: bytearray, rng: random.Random) -> None:
        position, nbytes = rng.choice(self.values)
        if nbytes > 8:  # a string or array: its length, item type or contents
            position += rng.choice((0, 4, rng.randrange(min(nbytes, 64))))
        form, choices = rng.choice((("<I", NUMBERS), ("<Q", NUMBERS), ("<f", FLOATS), ("<B", range(256))))
        value = rng.choice(choices)
        limit = 1 << 8 * struct.calcsize(form)
        self._put(data, position, struct.pack(form, value % limit if isinstance(value, int) else value))

    def _type(self, data: bytearray, rng: random.Random) -> None:
        position, _ = rng.choice(self.values)
        self._put(data, position - 4, struct.pack("<I", rng.choice(TYPES)))

    def _table(self, data: bytearray, rng: random.Random) -> None:
        start, nbytes = self.table
        position = start + rng.randrange(nbytes)
        self._put(data, position, rng.choice((struct.pack("<Q", rng.choice(NUMBERS)), bytes([rng.randrange(256)]))))

    def _byte(self, data: bytearray, rng: random.Random) -> None:
        self._put(data, rng.randrange(len(data) + 1), bytes([rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))]))

    def _cut(self, data: bytearray, rng: random.Random) -> None:
        if rng.random() < 0.2:
            del data[rng.randrange(len(data) + 1) :]
        else:
            position = rng.randrange(min(self.header_nbytes, len(data)), len(data) + 1)
            data[position : position + 64] = rng.choice((b"\0", b"\xff", b"\x7f\xc0")) * 32

    def _put(self, data: bytearray, position: int, value: bytes) -> None:
        end = min(len(data), position + len(value))
        data[position:end] = value[: max(0, end - position)]


def run_one(path: Path) -> str:
    """Open the model and generate a token from a prompt and from a message; the outcome in a word."""
    try:
        with LanguageModel(path, threads=1, context=32, sessions=1) as lm:
            list(lm.generate("ab c", raw=True, max_tokens=1))
            list(lm.generate("ab c", max_tokens=1))
    except CamshaftError as error:
        text = str(error)
        assert text
        assert "\n" not in text
        assert len(text) < len(str(path)) + 700
        return type(error).__name__
    return "ran"


def run_many(folder: Path, seeds: range, names: tuple[str, ...]) -> dict[str, int]:
    outcomes: dict[str, int] = {}
    mutators = [Mutator(tiny_model(name, folder)) for name in names]
    for seed in seeds:
        rng = random.Random(seed)
        path = folder / "mutant.gguf"
        path.write_bytes(rng.choice(mutators).mutant(rng))
        try:
            outcome = run_one(path)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    return outcomes


def test_a_mutated_model_runs_or_is_refused(tmp_path: Path) -> None:
    outcomes = run_many(tmp_path, range(12), ("llama",))
    assert sum(outcomes.values()) == 12


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore")
def test_many_mutated_models_run_or_are_refused(tmp_path: Path) -> None:
    outcomes = run_many(tmp_path, range(3000), TINY_MODELS)
    assert outcomes.get("ran", 0) > 100
    assert outcomes.get("FormatError", 0) > 100
    assert outcomes.get("ModelError", 0) > 100


WRONG = {
    "true": True,
    "booleans": np.ones(3, np.bool_),
    "text": "a\nb\x1b[2J" * 40,
    "texts": ["a", "b", "c"],
    "NaN": float("nan"),
    "infinity": float("inf"),
    "numbers": np.arange(700, dtype=np.float32).reshape(-1),
    "NaNs": np.full(700, np.nan, np.float32),
    "negative": -1,
    "huge": 2**64 - 1,
    "integers": np.full(700, 2**63, np.uint64),
    "nothing": np.zeros(0, np.int32),
}

LIES: dict[str, Any] = {"none": 0, "half": 0.5, "above 31 bits": 2**31, "one layer": [1], "more than layers": [1] * 99}


def use(metadata: Mapping[str, Any], tensors: Mapping[str, FileTensor]) -> None:
    """Read everything that opening a model reads from its metadata."""
    config = read_config(metadata, family_name(metadata), vocabulary_size(metadata))
    read_scaling(metadata, tensors, config)
    tokenizer = Tokenizer.from_gguf(metadata)
    tokenizer.decode(tokenizer.encode("ab c"))
    template = ChatTemplate.from_gguf(metadata, tokenizer.vocabulary.tokens)
    tokenizer.encode(template.render([{"role": "user", "content": "ab"}]))


@pytest.mark.parametrize("name", ["llama-yarn", *(pytest.param(n, marks=pytest.mark.full) for n in ("llama", "qwen3"))])
def test_a_value_of_the_wrong_kind_is_one_line(name: str, tmp_path: Path) -> None:
    with open_gguf(tiny_model(name, tmp_path)) as file, warnings.catch_warnings():
        warnings.simplefilter("error")
        given = dict(file.metadata)
        use(given, file.tensors)
        n_refused = 0
        for key in [*given, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.eot_token_id", "tokenizer.chat_template"]:
            for kind, value in WRONG.items():
                try:
                    use(given | {key: value}, file.tensors)
                except CamshaftError as error:
                    text, n_refused = str(error), n_refused + 1
                    assert text.isprintable(), (key, kind, text)
                    assert len(text) < 500, (key, kind, text)
        assert n_refused > 100


@pytest.mark.full
@pytest.mark.parametrize("name", TINY_MODELS)
def test_wrong_values_of_every_key_of_a_family_are_one_line(name: str, tmp_path: Path) -> None:
    with open_gguf(tiny_model(name, tmp_path)) as file, warnings.catch_warnings():
        warnings.simplefilter("error")
        given = dict(file.metadata)
        keys = [key for key in given if not key.startswith(("general.", "tokenizer."))]
        n_refused = 0
        for key in keys:
            for kind, value in (WRONG | LIES).items():
                try:
                    config = read_config(given | {key: value}, family_name(given), vocabulary_size(given))
                    read_scaling(given | {key: value}, file.tensors, config)
                except CamshaftError as error:
                    text, n_refused = str(error), n_refused + 1
                    assert text.isprintable(), (key, kind, text)
                    assert len(text) < 500, (key, kind, text)
        assert n_refused > 2 * len(keys)

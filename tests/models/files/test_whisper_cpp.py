"""Files of whisper.cpp become GGUF: sizes, tokens, merges and tensors; damaged ones are one clear line."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from camshaft.errors import CamshaftError, FormatError
from camshaft.formats.blocks import BLOCK_FORMATS
from camshaft.formats.gguf.file import open_gguf
from camshaft.generate.speech.tokens import read_tokens
from camshaft.models.convert.convert import convert
from camshaft.models.speech.config import read_speech_config
from camshaft.models.speech.ggml import _LAYER, MAGIC
from camshaft.models.speech.ggml_vocabulary import merges_of
from camshaft.ops.fft.audio import mel_filters
from camshaft.text.tokenizer import Tokenizer
from camshaft.text.tokenizers.byte_level import from_byte_level
from scripts.oracles.tiny.vocabulary import make_tokens

DIM, MELS = 32, 80
SIZES = {
    "n_vocab": 51865, "audio_context": 1500, "dim": DIM, "heads": 2, "layers": 1,
    "text_context": 448, "text_dim": DIM, "text_heads": 2, "text_layers": 1, "n_mels": MELS, "file_type": 1,
}  # fmt: skip


def _tokens() -> list[bytes]:
    """Bytes and merges as GPT-2's ids have them, then many tokens that no merge makes."""
    texts, types, _ = make_tokens()
    known = [from_byte_level(text) for text, kind in zip(texts, types, strict=True) if kind == 1]
    return known + [b"~%d" % i for i in range(50257 - len(known) - 1)] + [b""]


def _tensor(name: str, values: Any, form: str) -> bytes:
    row = BLOCK_FORMATS[form]
    data = row.quantize(np.asarray(values, np.float32).reshape(-1, row.block_size)).tobytes()
    shape = np.shape(values)[::-1]
    head = struct.pack("<3i", len(shape), len(name), row.ggml_id or 0)
    return head + struct.pack(f"<{len(shape)}i", *shape) + name.encode() + data


def _theirs(name: str) -> str:
    """whisper.cpp's name of a tensor of a layer."""
    side, _, number, ours, ending = name.split(".")
    stem = next(theirs for theirs, mine in _LAYER.items() if mine == ours)
    return f"{side}oder.blocks.{number}.{stem}.{ending}"


def _drawn() -> dict[str, np.ndarray[Any, Any]]:
    """The tensors of a model by their names in GGUF."""
    rng = np.random.default_rng(2)

    def draw(*shape: int) -> np.ndarray[Any, Any]:
        return rng.normal(size=shape).astype(np.float32)

    made = {"enc.position_embd.weight": draw(1500, DIM), "dec.position_embd.weight": draw(448, DIM)}
    made |= {"token_embd.weight": np.zeros((51865, DIM), np.float32)}
    for n, channels in (("conv1", MELS), ("conv2", DIM)):
        made |= {f"enc.{n}.weight": draw(DIM, channels, 3), f"enc.{n}.bias": draw(DIM)}
    for side, crosses in (("enc", [""]), ("dec", ["", "cross_"])):
        made |= {f"{side}.output_norm.{end}": draw(DIM) for end in ("weight", "bias")}
        for part in ("ffn_norm", *(f"{c}attn_norm" for c in crosses)):
            made |= {f"{side}.blk.0.{part}.{end}": draw(DIM) for end in ("weight", "bias")}
        for part, rows, columns in (
            ("ffn_up", 4 * DIM, DIM), ("ffn_down", DIM, 4 * DIM),
            *((f"{c}attn_{x}", DIM, DIM) for c in crosses for x in ("q", "k", "v", "output")),
        ):  # fmt: skip
            made[f"{side}.blk.0.{part}.weight"] = draw(rows, columns)
            if not part.endswith("attn_k"):
                made[f"{side}.blk.0.{part}.bias"] = draw(rows)
    return made


_TOP = {
    "enc.position_embd.weight": "encoder.positional_embedding",
    "dec.position_embd.weight": "decoder.positional_embedding",
    "token_embd.weight": "decoder.token_embedding.weight",
}


def ggml_file(path: Path, tensors: dict[str, np.ndarray[Any, Any]], **sizes: int) -> bytes:
    """A file of whisper.cpp, with Q5_0 weights as its program `quantize` writes them."""
    filters = mel_filters(201, MELS, 16000, norm="slaney", mel="slaney").astype("<f4")
    tokens = _tokens()
    parts = [MAGIC, struct.pack("<11i", *(SIZES | sizes).values()), struct.pack("<2i", MELS, 201), filters.tobytes()]
    parts += [struct.pack("<i", len(tokens)), *(struct.pack("<i", len(t)) + t for t in tokens)]
    for name, values in tensors.items():
        theirs = _TOP.get(name)
        if theirs is None:
            side, rest = name.split(".", 1)
            norm = "ln_post" if side == "enc" else "ln"
            theirs = _theirs(name) if ".blk." in name else f"{side}oder.{rest.replace('output_norm', norm)}"
        if name.endswith("bias") and "conv" in name:
            values = values[:, None]
        matrix = values.ndim == 2 and ("blk" in name or "token" in name)
        parts.append(_tensor(theirs, values, "Q5_0" if matrix else "F16" if values.ndim == 3 else "F32"))
    data = b"".join(parts)
    path.write_bytes(data)
    return data


def test_a_file_becomes_a_model_with_the_same_tensors(tmp_path: Path) -> None:
    tensors = _drawn()
    ggml_file(tmp_path / "ggml-x.bin", tensors)
    result = convert(tmp_path / "ggml-x.bin", tmp_path / "x.gguf")
    assert (result.architecture, result.n_tensors["Q5_0"]) == ("whisper", 17)
    with open_gguf(tmp_path / "x.gguf") as file:
        assert {*file.tensors} == {*tensors}
        for name, values in tensors.items():
            found = file.tensors[name]
            assert tuple(found.shape) == values.shape
            assert np.abs(found.dequantize() - values).max() <= (0.2 if found.format.name == "Q5_0" else 1e-2)
        config = read_speech_config(file.metadata, 51865)
        assert (config.n_mels, config.dim, config.multilingual) == (MELS, DIM, True)
        tokenizer = Tokenizer.from_gguf(file.metadata)
    tokens = read_tokens(tokenizer, config)
    # whisper.cpp's ids of a model of many languages
    assert (tokens.end, tokens.start, tokens.languages["en"], tokens.languages["su"]) == (50257, 50258, 50259, 50357)
    assert (tokens.translate, tokens.transcribe, tokens.previous) == (50358, 50359, 50361)
    assert (tokens.no_speech, tokens.no_timestamps, tokens.first_timestamp) == (50362, 50363, 50364)
    assert tokens.last_timestamp == 51864
    ids = tokenizer.encode(" the man and", add_special=False)
    assert [tokenizer.spelled_bytes(i) for i in ids] == [b" the", b" ", b"m", b"an", b" an", b"d"]


def test_merges_are_found_again() -> None:
    _, _, merges = make_tokens()
    assert merges_of(_tokens()[: 256 + len(merges)]) == merges


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"n_vocab": 300}, "has 50257 tokens of 300"),
        ({"n_mels": 128}, "has 80 mel filters of 201; wanted 128 of 201"),
        ({"layers": -1}, "wanted those of a Whisper"),
        ({"text_dim": 64}, "wanted those of a Whisper"),
        ({"n_vocab": 2**31 - 1}, "wanted those of a Whisper"),
    ],
)
def test_sizes_that_lie_are_one_clear_line(sizes: dict[str, int], message: str, tmp_path: Path) -> None:
    ggml_file(tmp_path / "x.bin", {}, **sizes)
    with pytest.raises(FormatError, match=message):
        convert(tmp_path / "x.bin", tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


@pytest.mark.full
def test_a_file_cut_or_changed_anywhere_is_refused_in_one_line(tmp_path: Path) -> None:
    tensors = {"enc.output_norm.weight": np.ones(DIM, np.float32), "enc.output_norm.bias": np.ones(DIM, np.float32)}
    whole, path = ggml_file(tmp_path / "x.bin", tensors), tmp_path / "x.bin"
    changed = [whole[:cut] for cut in (9, 5000, 100_000, len(whole) - 1)]
    last = whole.rindex(b"encoder.ln_post.bias")
    for at, value in ((last - 16, 9), (last - 8, 77), (last - 4, 2**31 - 1), (last, 0)):
        changed.append(whole[:at] + struct.pack("<i", value) + whole[at + 4 :])
    for data in changed:
        path.write_bytes(data)
        with pytest.raises(CamshaftError) as caught:
            convert(path, tmp_path / "x.gguf")
        assert "\n" not in str(caught.value)
    path.write_bytes(whole)
    with pytest.raises(FormatError, match="keeps its formats; wanted no TYPE"):
        convert(path, tmp_path / "x.gguf", "Q8_0")

"""Tiny random models that see pictures, made and run by transformers, as two GGUF files as llama.cpp's converter writes them."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from scripts.oracles import tiny_files
from scripts.oracles.tiny_models import NUMBERS_OF_8_BITS, TinyModel
from scripts.oracles.tiny_vocabulary import make_tokens, write_tokenizer
from tests.support.pictures import drawn_picture

MEAN, STD = [0.5, 0.4, 0.6], [0.5, 0.25, 0.3]
FIRST_SEED = 300
ASCII = 131  # tokens: the control tokens, the bytes of ASCII, one merge
EVERY = 7  # of so many tokens one has its logits frozen, and the last ones


@dataclass(frozen=True)
class TinyVision:
    """One model to make. `sizes` are those of vision_config in transformers' words, `keys` the metadata of the second file.

    `text` is the text model; `more` are the control tokens of pictures, of which `marker` stands for each token of one.
    `prompts` have `written` for each picture, whose width and height are in `pictures`."""

    name: str
    family: str
    projector: str
    text: TinyModel
    sizes: Mapping[str, Any]
    keys: Mapping[str, Any]
    more: tuple[str, ...]
    marker: str
    written: str
    processor: Callable[[Any], Any]
    pictures: tuple[tuple[int, int], ...] = ((37, 23), (61, 90))
    options: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""

    @property
    def prompts(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Texts, and the numbers of their pictures."""
        seen = f"the {self.written}in and"
        return (seen, (0,)), (f"Say{self.written} and {self.written} the ring", (1, 0))


def _idefics3(tokenizer: Any) -> Any:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    pictures = Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}, image_mean=MEAN, image_std=STD
    )
    return transformers.Idefics3Processor(pictures, tokenizer, image_seq_len=4)


MODELS = (
    TinyVision(
        "idefics3",
        "Idefics3",
        "idefics3",
        TinyModel(
            "idefics3", "Llama", 32, 64, heads=2, kv_heads=1, head_dim=16, values=NUMBERS_OF_8_BITS, n_vocab=ASCII
        ),
        {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        {"use_gelu": True, "vision.projector.scale_factor": 2, "vision.preproc_image_size": 64},
        (
            *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
            *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
        ),
        "<image>",
        "<image>",
        _idefics3,
        options={"scale_factor": 2},
    ),
)


def build(model: TinyVision, seed: int) -> Any:
    """The transformers model, every parameter drawn."""
    text = model.text
    ids = {token: i for i, token in enumerate(make_tokens(text.n_vocab, model.more)[0])}
    of_text = {
        "model_type": text.family.lower(),
        "vocab_size": text.n_vocab + len(model.more),
        "hidden_size": text.hidden,
        "intermediate_size": text.ffn,
        "num_hidden_layers": text.n_layers,
        "num_attention_heads": text.heads,
        "num_key_value_heads": text.kv_heads,
        "head_dim": text.head_dim,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {**text.rope, "rope_theta": text.theta},
        "tie_word_embeddings": text.tied,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 2),
        **text.options,
    }
    config = getattr(transformers, f"{model.family}Config")(
        vision_config={"num_hidden_layers": 2, **model.sizes},
        text_config=of_text,
        image_token_id=ids[model.marker],
        tie_word_embeddings=text.tied,
        attn_implementation="eager",
        **model.options,
    )
    network = getattr(transformers, f"{model.family}ForConditionalGeneration")(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            drawn = _draw(name, parameter.shape, generator)
            parameter.copy_(drawn.to(getattr(torch, text.values)).float())
    return network


def _draw(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    if "norm" in name and name.endswith("weight"):
        return torch.rand(shape, generator=generator) + 0.5
    values = torch.randn(shape, generator=generator)
    if name.endswith("bias"):
        return values / 2
    if "embed_tokens" in name or "position_embedding" in name:
        return values
    gain = 1.6 if any(word in name for word in ("q_proj", "k_proj", "lm_head")) else 1.0
    return values * gain / math.sqrt(math.prod(shape[1:]))


def text_of(network: Any) -> Any:
    """The text model alone, with its output projection."""
    inner = network.model
    part = getattr(inner, "text_model", None) or inner.language_model
    kind = getattr(transformers, f"{type(part).__name__.removesuffix('Model')}ForCausalLM")
    made = kind(network.config.text_config).eval().float()
    state = {f"model.{name}": value for name, value in part.state_dict().items()}
    made.load_state_dict({**state, "lm_head.weight": network.lm_head.weight})
    return made


def write_text(model: TinyVision, network: Any, path: Path) -> None:
    """The text model as an F32 GGUF file."""
    given = {"template": model.template} if model.template else {}
    tiny_files.write_gguf(model.text, text_of(network), path, model.more, **given)


def write_vision(model: TinyVision, network: Any, path: Path) -> None:
    """The vision encoder and projector as an F32 GGUF file."""
    writer, sizes = gguf.GGUFWriter(path, "clip"), model.sizes
    given = {
        "has_vision_encoder": True,
        "projector_type": model.projector,
        "vision.projection_dim": model.text.hidden,
        "vision.embedding_length": sizes["hidden_size"],
        "vision.feed_forward_length": sizes["intermediate_size"],
        "vision.block_count": sizes.get("num_hidden_layers", 2),
        "vision.attention.head_count": sizes["num_attention_heads"],
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.image_size": sizes["image_size"],
        "vision.patch_size": sizes["patch_size"],
        "vision.image_mean": MEAN,
        "vision.image_std": STD,
        **model.keys,
    }
    for key, value in given.items():
        writer.add_key_value(f"clip.{key}", value, *_kinds(value))
    for name, values in vision_tensors(network):
        writer.add_tensor(name, np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _kinds(value: Any) -> tuple[gguf.GGUFValueType, gguf.GGUFValueType | None]:
    kinds = gguf.GGUFValueType
    if isinstance(value, list):
        return kinds.ARRAY, kinds.BOOL if isinstance(value[0], bool) else kinds.FLOAT32
    if isinstance(value, bool | str):
        return kinds.BOOL if isinstance(value, bool) else kinds.STRING, None
    return kinds.UINT32 if isinstance(value, int) else kinds.FLOAT32, None


def vision_tensors(network: Any) -> Iterator[tuple[str, np.ndarray]]:
    """(GGUF name, float32 values) of the tensors that are not the text model's."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, 16)
    for name, parameter in network.state_dict().items():
        if "text_model" in name or "language_model" in name or "lm_head" in name:
            continue
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise ValueError(f"no GGUF name for {name}")
        yield found, parameter.float().numpy()


def processor_of(model: TinyVision) -> Any:
    """The processor of transformers, over the tiny vocabulary."""
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), "smollm", model.text.n_vocab, model.more)
        settings = Path(folder) / "tokenizer_config.json"
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"additional_special_tokens": [*model.more]}))
        tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    return model.processor(tokenizer)


def answers(model: TinyVision, network: Any) -> dict[str, np.ndarray]:
    """Of each prompt the ids, which of them have logits, and these, float32 [rows, vocab], computed in float64; the pixels that
    the encoder got of each picture."""
    processor, network = processor_of(model), network.double()
    made: dict[str, np.ndarray] = {}
    for n, (text, numbers) in enumerate(model.prompts):
        pictures = [drawn_picture(*model.pictures[k]) for k in numbers]
        given = processor(text=text, images=[pictures], return_tensors="pt")
        with torch.no_grad():
            logits = network(**given).logits[0].numpy().astype(np.float32)
        rows = sorted({*range(0, len(logits), EVERY), *range(len(logits) - 4, len(logits))})
        made |= {
            f"text{n}": np.array(text),
            f"sizes{n}": np.array([model.pictures[k] for k in numbers], np.int32),
            f"ids{n}": given["input_ids"][0].numpy().astype(np.int32),
            f"rows{n}": np.array(rows, np.int32),
            f"logits{n}": logits[rows],
        }
    return made

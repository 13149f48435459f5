"""A tiny random Whisper, made and run by transformers; saved in Hugging Face's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from scripts.oracles.tiny.vocabulary import make_tokens
from tests.support.models.speech import RECORDINGS, sound

N_MELS, AUDIO_CONTEXT, TEXT_CONTEXT = 16, 50, 64
N_TIMESTAMPS = AUDIO_CONTEXT + 1
LANGUAGES = ("en", "de", "fr")
CONTROL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    *(f"<|{language}|>" for language in LANGUAGES),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)


def tokens() -> tuple[list[str], list[str]]:
    """(texts of the vocabulary without timestamps, merges): bytes and merges first, as in Whisper's."""
    made, types, merges = make_tokens()
    return [*(t for t, kind in zip(made, types, strict=True) if kind == 1), *CONTROL], merges


def make(seed: int = 3) -> Any:
    """The network, with all parameters drawn, of numbers of bfloat16."""
    texts, _ = tokens()
    first = {text: i for i, text in enumerate(texts)}
    config = transformers.WhisperConfig(
        vocab_size=len(texts) + N_TIMESTAMPS,
        num_mel_bins=N_MELS,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        d_model=32,
        max_source_positions=AUDIO_CONTEXT,
        max_target_positions=TEXT_CONTEXT,
        decoder_start_token_id=first["<|startoftranscript|>"],
        pad_token_id=first["<|endoftext|>"],
        bos_token_id=first["<|endoftext|>"],
        eos_token_id=first["<|endoftext|>"],
        begin_suppress_tokens=None,
    )
    network = transformers.WhisperForConditionalGeneration(config).eval()
    drawn = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            values = torch.randn(parameter.shape, generator=drawn) * _scale(name, parameter)
            values = values + 1 if "norm.weight" in name else values
            parameter.copy_(values.to(torch.bfloat16).float())
    network.generation_config = _generation(config, first)
    return network


def _scale(name: str, parameter: Any) -> float:
    if "embed_tokens" in name:
        return 0.45
    if parameter.ndim == 1 or "embed_positions" in name:
        return 0.3
    if "attn.q_proj" in name or "attn.k_proj" in name:
        return 2.0 * parameter.shape[-1] ** -0.5
    return 1.5 * float(np.prod(parameter.shape[1:])) ** -0.5


def _generation(config: Any, first: dict[str, int]) -> Any:
    return transformers.GenerationConfig(
        decoder_start_token_id=config.decoder_start_token_id,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        is_multilingual=True,
        lang_to_id={f"<|{language}|>": first[f"<|{language}|>"] for language in LANGUAGES},
        task_to_id={task: first[f"<|{task}|>"] for task in ("translate", "transcribe")},
        no_timestamps_token_id=first["<|notimestamps|>"],
        prev_sot_token_id=first["<|startofprev|>"],
        max_initial_timestamp_index=12,
        suppress_tokens=[3, *range(first["<|startoftranscript|>"], len(first))],
        begin_suppress_tokens=[first["Ġ"], first["<|endoftext|>"]],
        max_length=TEXT_CONTEXT,
    )


def save(network: Any, folder: Path) -> None:
    """The model and its tokenizer in Hugging Face's layout."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    network.save_pretrained(folder)
    texts, merges = tokens()
    normal = {text: i for i, text in enumerate(texts) if text not in CONTROL}
    made = Tokenizer(models.BPE(normal, [tuple(merge.split(" ")) for merge in merges]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(CONTROL))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "tokenizer_class": "WhisperTokenizer"})
    )


def write(network: Any, path: Path) -> None:
    """The model as an F32 file, as `camshaft convert` makes it."""
    from camshaft.models.convert.convert import convert

    save(network, path.parent)
    convert(path.parent, path, "F32")


def extractor(n_mels: int = N_MELS, seconds: int = 1) -> Any:
    """transformers' features for a model of such windows."""
    return transformers.WhisperFeatureExtractor(feature_size=n_mels, chunk_length=seconds)


def generated(network: Any, recording: tuple[float, int, str | None, bool]) -> list[dict[str, Any]]:
    """transformers' segments of a recording: start, end and tokens, greedy and without thresholds."""
    seconds, seed, language, conditioned = recording
    given = extractor()(
        sound(seconds, seed),
        sampling_rate=16000,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    )
    more = {"condition_on_prev_tokens": True, "temperature": 0.0} if conditioned else {}
    made = network.generate(
        given.input_features,
        attention_mask=given.attention_mask,
        language=language,
        task="transcribe",
        return_timestamps=True,
        max_new_tokens=TEXT_CONTEXT // 2 - 3 * conditioned,  # what fits behind the text before
        return_segments=True,
        **more,
    )
    return [
        {"start": float(s["start"]), "end": float(s["end"]), "tokens": [int(i) for i in s["tokens"]]}
        for s in made["segments"][0]
    ]


def facts(network: Any) -> dict[str, Any]:
    """What transformers says: features of two models, logits of a window, segments of recordings, languages."""
    features = extractor()(sound(1.0), sampling_rate=16000, return_tensors="np").input_features[0]
    of_80 = extractor(80, 3)(sound(3.0, 8), sampling_rate=16000, return_tensors="np").input_features[0]
    ids = np.random.default_rng(1).integers(0, network.config.vocab_size, size=24)
    segments = [generated(network, recording) for recording in RECORDINGS]
    with torch.no_grad():
        exact = network.double()
        out = exact(input_features=torch.tensor(features[None]).double(), decoder_input_ids=torch.tensor(ids[None]))
        start = exact(
            input_features=torch.tensor(features[None]).double(),
            decoder_input_ids=torch.tensor([[network.config.decoder_start_token_id]]),
        ).logits[0, 0]
    network.float()
    of_languages = start[[tokens()[0].index(f"<|{language}|>") for language in LANGUAGES]]
    return {
        "features": features,
        "features_80": np.ascontiguousarray(of_80[:, ::9]),
        "tokens": ids.astype(np.int32),
        "logits": out.logits[0].float().numpy(),
        "languages": torch.softmax(of_languages, 0).numpy(),
        "segments": np.frombuffer(json.dumps(segments).encode(), np.uint8),
    }

"""Whisper (Radford et al., 2022): two convolutions and an encoder over a window of sound, and a decoder that attends to it.

Both have layer norms before attention and feed-forward, gelu by erf, and learned positions. The keys and values that the decoder
finds in a window are computed once, with the encoder, and kept in states.

What it hears is a logarithmic mel spectrogram: stft, power, mel bands, log10.

    features = (max(log10(max(mel power, 1e-10)), largest - 8) + 4) / 4,  largest over the whole recording

A recording is longer than a run, so the graph of features ends with log10, and `normalized` does the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from camshaft.dtypes import DType, i32
from camshaft.extent import Extent
from camshaft.formats.tensor import FileTensor
from camshaft.graph import functions as F
from camshaft.graph.graph import Graph, Tensor
from camshaft.models.blocks.cross_attention import Heads, Memory, attend, attend_whole, fixed_places, write
from camshaft.models.checkpoint import Checkpoint
from camshaft.models.speech.config import HOP, N_FFT, SAMPLE_RATE, STRIDE, SpeechConfig
from camshaft.ops.attention.kv_cache_update import BLOCK_TOKENS
from camshaft.ops.spec import Dim, TensorSpec

_WIDTH = 3  # frames that a convolution sees
Tensors = Mapping[str, FileTensor]


@dataclass(frozen=True)
class Texts:
    """The sizes of a decoder's states: texts at once, and the largest length of one as of this run."""

    slots: int
    length: Extent

    @property
    def blocks(self) -> int:
        """Blocks of keys that a text has."""
        return -(-self.length.bound // BLOCK_TOKENS)


def heads_of(config: SpeechConfig) -> Heads:
    """The heads of every layer."""
    return Heads(config.n_heads, config.head_dim, config.head_dim**-0.5)


def state_specs(config: SpeechConfig, texts: Texts, form: DType) -> dict[str, TensorSpec]:
    """The states by name: of each layer of the decoder `keys.N` and `values.N` of texts, and `cross_keys.N` and
    `cross_values.N` of a window; `block_table`, of texts."""
    specs = {"block_table": TensorSpec((texts.slots, texts.blocks), i32)}
    blocks = {"": texts.slots * texts.blocks, "cross_": -(-config.audio_context // BLOCK_TOKENS)}
    for layer in range(config.n_decoder_layers):
        for kind, n in blocks.items():
            specs[f"{kind}keys.{layer}"] = TensorSpec((n, config.n_heads, config.head_dim, BLOCK_TOKENS), form)
            specs[f"{kind}values.{layer}"] = TensorSpec((n, config.n_heads, BLOCK_TOKENS, config.head_dim), form)
    return specs


def encoder_graph(config: SpeechConfig, tensors: Tensors, specs: Mapping[str, TensorSpec]) -> Graph:
    """The graph from `features` f32 [n_mels, n_frames] to `encoded` f32 [audio_context, dim], and to the states that
    the decoder attends to."""
    graph, heads = Graph(), heads_of(config)
    file = Checkpoint(tensors, graph)
    x = _convolved(graph.input("features", (config.n_mels, config.n_frames), "f32"), config, file)
    for layer in range(config.n_encoder_layers):
        prefix = f"enc.blk.{layer}"
        q, k, v = _projections(_norm(x, f"{prefix}.attn_norm", config, file), f"{prefix}.attn", config, file)
        y = attend_whole(q, k, v, heads, f"{prefix}.attention")
        x = F.add(x, file.linear(y, f"{prefix}.attn_output", config.dim, bias=True))
        x = F.add(x, _feed_forward(x, prefix, config, file))
    x = _norm(x, "enc.output_norm", config, file)
    places = fixed_places(graph, config.audio_context)
    for layer in range(config.n_decoder_layers):
        prefix = f"dec.blk.{layer}.cross_attn"
        k = file.linear(x, f"{prefix}_k", config.dim)
        v = file.linear(x, f"{prefix}_v", config.dim, bias=True)
        keys, values = (graph.state(name, specs[name]) for name in (f"cross_keys.{layer}", f"cross_values.{layer}"))
        write(Memory(keys, values, *places, config.audio_context), k, v, heads, f"{prefix}.write")
    graph.output("encoded", x)
    return graph


def _convolved(features: Tensor, config: SpeechConfig, file: Checkpoint) -> Tensor:
    """Two convolutions over time, the second one with a stride, then positions: f32 [audio_context, dim]."""
    x = features.reshape((1, config.n_mels, config.n_frames))
    for name, channels, stride in (("enc.conv1", config.n_mels, 1), ("enc.conv2", config.dim, STRIDE)):
        w = file.converted(f"{name}.weight", (config.dim, channels, _WIDTH), np.asarray)
        y = F.conv1d(x, w, padding=1, stride=stride, name=name)
        bias = file.vector(f"{name}.bias", config.dim).reshape((1, config.dim, 1))
        x = F.gelu_erf(F.add(y, bias))
    rows = F.transpose(x.reshape((config.dim, config.audio_context)), axes=(1, 0))
    positions = file.converted("enc.position_embd.weight", (config.audio_context, config.dim), np.asarray)
    added: Tensor = F.add(rows, positions)
    return added


def decoder_graph(
    config: SpeechConfig,
    tensors: Tensors,
    specs: Mapping[str, TensorSpec],
    texts: Texts,
    tokens: Dim,
    rows: Dim | None,
) -> Graph:
    """The graph from `ids`, `positions`, `slots` and `windows` (0: there is one window), all i32 [tokens], to `logits` of the
    tokens `rows` (None: of all)."""
    graph, heads = Graph(), heads_of(config)
    file = Checkpoint(tensors, graph)
    ids, positions, slots, windows = (
        graph.input(name, (tokens,), "i32") for name in ("ids", "positions", "slots", "windows")
    )
    wanted = None if rows is None else graph.input("rows", (rows,), "i32")
    table = graph.state("block_table", specs["block_table"])
    _, _, cross_table = fixed_places(graph, config.audio_context)
    heard = graph.constant("fixed.lengths", np.array([config.audio_context], np.int32))
    embeddings = file.tensor("token_embd.weight", config.vocab_size, config.dim)
    known = file.tensor("dec.position_embd.weight", config.text_context, config.dim)
    x = F.add(F.embedding(ids, embeddings, to="f32"), F.embedding(positions, known, to="f32"))
    for layer in range(config.n_decoder_layers):
        keys, values, *cross = (graph.state(f"{name}.{layer}", specs[f"{name}.{layer}"]) for name in _STATES)
        own = Memory(keys, values, positions, slots, table, texts.length)
        sound = Memory(cross[0], cross[1], positions, windows, cross_table, config.audio_context, heard)
        x = _decoder_layer(x, f"dec.blk.{layer}", own, sound, heads, config, file)
    x = x if wanted is None else F.gather(x, wanted, name="rows_of_text")
    graph.output("logits", file.product(_norm(x, "dec.output_norm", config, file), embeddings, "logits"))
    return graph


_STATES = ("keys", "values", "cross_keys", "cross_values")


def _decoder_layer(
    x: Tensor, prefix: str, own: Memory, sound: Memory, heads: Heads, config: SpeechConfig, file: Checkpoint
) -> Tensor:
    """Attention to earlier tokens, then to the window, then a feed-forward, each of a norm and added."""
    q, k, v = _projections(_norm(x, f"{prefix}.attn_norm", config, file), f"{prefix}.attn", config, file)
    write(own, k, v, heads, f"{prefix}.write")
    y = attend(own, q, heads, f"{prefix}.attention")
    x = F.add(x, file.linear(y, f"{prefix}.attn_output", config.dim, bias=True))
    h = _norm(x, f"{prefix}.cross_attn_norm", config, file)
    y = attend(
        sound, file.linear(h, f"{prefix}.cross_attn_q", config.dim, bias=True), heads, f"{prefix}.cross_attention"
    )
    x = F.add(x, file.linear(y, f"{prefix}.cross_attn_output", config.dim, bias=True))
    added: Tensor = F.add(x, _feed_forward(x, prefix, config, file))
    return added


def _projections(h: Tensor, prefix: str, config: SpeechConfig, file: Checkpoint) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v; k has no bias."""
    q, k, v = (file.linear(h, f"{prefix}_{part}", config.dim, bias=part != "k") for part in "qkv")
    return q, k, v


def _feed_forward(x: Tensor, prefix: str, config: SpeechConfig, file: Checkpoint) -> Tensor:
    up = file.linear(_norm(x, f"{prefix}.ffn_norm", config, file), f"{prefix}.ffn_up", config.ffn_dim, bias=True)
    return file.linear(F.gelu_erf(up), f"{prefix}.ffn_down", config.dim, bias=True)


def _norm(x: Tensor, name: str, config: SpeechConfig, file: Checkpoint) -> Tensor:
    w, b = (file.vector(f"{name}.{part}", config.dim) for part in ("weight", "bias"))
    y: Tensor = F.layer_norm(x, w, b, eps=config.norm_eps, name=name)
    return y


Array = np.ndarray[Any, Any]
# Frames that one run computes.
RUN_FRAMES = 1000
RUN_SAMPLES = (RUN_FRAMES - 1) * HOP + N_FFT
_SMALLEST, _RANGE = 1e-10, 8.0


def features_graph(n_mels: int) -> Graph:
    """The graph from `samples` f32 [RUN_SAMPLES] to `log_mel` f32 [n_mels, RUN_FRAMES]: frame t is of the N_FFT samples from
    t HOP, under a Hann window."""
    graph = Graph()
    samples = graph.input("samples", (RUN_SAMPLES,), "f32")
    window = np.hanning(N_FFT + 1)[:-1].astype(np.float32)
    spectrum = F.stft(samples, window, n_fft=N_FFT, hop_length=HOP, center=False)
    power = F.add(F.square(F.real(spectrum)), F.square(F.imag(spectrum)))
    mel = F.mel_scale(power, n_mels=n_mels, sample_rate=SAMPLE_RATE, norm="slaney", mel="slaney")
    graph.output("log_mel", F.multiply(F.log(F.maximum(mel, _SMALLEST)), 1.0 / math.log(10.0)))
    return graph


def padded(samples: Array) -> Array:
    """The samples with those that frames at both ends reach over, reflected, as torch.stft has them.

    `samples` has more than N_FFT / 2; a recording of n samples has n // HOP frames."""
    return np.pad(samples, N_FFT // 2, mode="reflect")


def normalized(log_mel: Array) -> Array:
    """The features of a whole recording, in place, from its log_mel f32 [n_mels, frames]."""
    np.maximum(log_mel, log_mel.max() - np.float32(_RANGE), out=log_mel)
    log_mel += np.float32(4.0)
    log_mel /= np.float32(4.0)
    return log_mel

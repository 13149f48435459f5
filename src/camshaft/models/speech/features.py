"""The logarithmic mel spectrogram of Whisper (Radford et al., 2022): stft, power, mel bands, log10.

    features = (max(log10(max(mel power, 1e-10)), largest - 8) + 4) / 4,  largest over the whole recording

A recording is longer than a run, so the graph ends with log10, and `normalized` does the rest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from camshaft.graph import functions as F
from camshaft.graph.graph import Graph
from camshaft.models.speech.config import HOP, N_FFT, SAMPLE_RATE

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

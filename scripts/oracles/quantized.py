"""llama.cpp's quantizers, through llama-cpp-python: blocks of values, and the type that each tensor of a file gets."""

from __future__ import annotations

import ctypes
from pathlib import Path

import gguf
import llama_cpp
import numpy as np


def blocks(values: np.ndarray, ggml_id: int, nbytes: int) -> np.ndarray:
    """ggml's blocks of float32 values [n, block_size]: uint8 [n, nbytes], without an importance matrix."""
    return _quantized(values.reshape(1, -1), None, ggml_id, nbytes * len(values)).reshape(-1, nbytes)


def weighted_rows(values: np.ndarray, importance: np.ndarray, ggml_id: int, nbytes: int) -> np.ndarray:
    """ggml's rows of float32 values [rows, k] with an importance of each column: uint8 [rows, nbytes]."""
    return _quantized(values, importance, ggml_id, nbytes)


def _quantized(values: np.ndarray, importance: np.ndarray | None, ggml_id: int, nbytes: int) -> np.ndarray:
    library = ctypes.CDLL(str(Path(llama_cpp.__file__).parent / "lib" / "libggml-base.so"))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,
        *[ctypes.c_void_p] * 2,
        *[ctypes.c_int64] * 3,
        ctypes.c_void_p,
    ]
    made = np.empty((len(values), nbytes), np.uint8)
    weights = None if importance is None else importance.ctypes.data
    written = library.ggml_quantize_chunk(ggml_id, values.ctypes.data, made.ctypes.data, 0, *values.shape, weights)
    assert written == made.nbytes
    return made


def requantize(source: Path, target: Path, file_type: int) -> None:
    """What llama-quantize does. ValueError where it refuses."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.allow_requantize, parameters.ftype, parameters.nthread = True, file_type, 2
    if llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), parameters):
        raise ValueError(f"llama.cpp refuses file type {file_type} of {source}")


def types_of(path: Path) -> dict[str, str]:
    """The type of every tensor of a file."""
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}

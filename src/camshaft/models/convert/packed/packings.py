"""Weights of 4 and 8 bits in a folder: which tensors make one weight, its shape, and its numbers.

AWQ, GPTQ and compressed-tensors are read by `ops/codes/repack.py`, MLX's affine weights are its result as it is; numbers of e2m1
(MXFP4, NVFP4) have their code's table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from camshaft.errors import CamshaftError, FormatError
from camshaft.formats.bits import Floats
from camshaft.formats.mapped import shown, shown_value
from camshaft.formats.tensor import FileTensor
from camshaft.models.convert.hub_config import HubConfig
from camshaft.ops.codes.repack import AffineWeights, from_awq, from_compressed_tensors, from_gptq

Tensors: TypeAlias = Mapping[str, FileTensor]
Settings: TypeAlias = Mapping[str, Any]
Shape: TypeAlias = tuple[int, ...]
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_E2M1 = np.concatenate([_E2M1, -_E2M1])
WORD = 32  # bits
MOST_GROUP = 1 << 16  # weights that share a scale


@dataclass(frozen=True)
class Packing:
    """A way to store weights. `mark` and `parts` are the endings of a weight's tensors, of which those with a '?' may be missing;
    `of` is the ending of the weight; `method` its name in config.json, where several have the same mark."""

    name: str
    mark: str
    parts: tuple[str, ...]
    shape: Callable[[Tensors, Settings], Shape]
    numbers: Callable[[Tensors, Settings], Floats]
    of: str = ".weight"
    method: str = ""

    @property
    def endings(self) -> tuple[str, ...]:
        """All endings."""
        return (self.mark, *(part.rstrip("?") for part in self.parts))


@dataclass(frozen=True)
class Packed:
    """One weight: its tensors by ending."""

    packing: Packing
    tensors: Tensors
    settings: Settings

    @property
    def path(self) -> str:
        """The file of its codes."""
        return self.tensors[self.packing.mark].path

    @property
    def shape(self) -> Shape:
        """[n, k], of experts with their number first. Raises FormatError for tensors that are not matrices."""
        try:
            return self.packing.shape(self.tensors, self.settings)
        except (IndexError, ValueError, ZeroDivisionError):
            raise self._wrong("their shapes do not fit each other") from None

    @property
    def usual_format(self) -> str:
        """The format that has the numbers' accuracy."""
        return "F16" if any(tensor.format.name == "F16" for tensor in self.tensors.values()) else "BF16"

    def numbers(self) -> Floats:
        """The weight as float32. Raises FormatError for tensors that do not fit each other."""
        wanted = self.shape
        try:
            made = np.asarray(self.packing.numbers(self.tensors, self.settings), np.float32)
        except (CamshaftError, IndexError, ValueError, ZeroDivisionError) as error:
            raise self._wrong(str(error)) from None
        if made.shape != wanted:
            raise self._wrong(f"they make {list(made.shape)}; wanted {list(wanted)}")
        return made

    def _wrong(self, what: str) -> FormatError:
        mark = self.tensors[self.packing.mark]
        return FormatError(f"{mark.path}: {shown(mark.name)} and the tensors beside it ({self.packing.name}): {what}")


def settings_of(config: HubConfig) -> dict[str, Any]:
    """The quantization settings of config.json: `method`, `bits`, `group_size`, `version`, and the file's `path`."""
    given = next((c for n in ("quantization_config", "quantization") if isinstance(c := config.get(n), dict)), {})
    groups = given.get("config_groups")
    first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
    weights = first.get("weights") if isinstance(first, dict) else None
    bits = given.get("bits", weights.get("num_bits") if isinstance(weights, dict) else None)
    size = given.get("group_size")
    return {
        "method": str(given.get("quant_method", "")),
        "bits": 4 if bits is None else bits,
        "group_size": 64 if size is None else size,
        "version": 2 if given.get("checkpoint_format") == "gptq_v2" else 1,
        "path": config.path,
    }


def _size(settings: Settings, name: str, most: int) -> int:
    """A number of the settings. Raises FormatError unless it is 1 to `most`."""
    value = settings[name]
    if type(value) is not int or not 1 <= value <= most:
        raise FormatError(f"{settings['path']}: {name} of its weights is {shown_value(value)}; wanted 1 to {most}")
    return value


def _bits(settings: Settings) -> int:
    return _size(settings, "bits", 8)


def _awq(tensors: Tensors, settings: Settings) -> Floats:
    return from_awq(*(tensors[e].array() for e in (".qweight", ".qzeros", ".scales"))).numbers()


def _gptq(tensors: Tensors, settings: Settings) -> Floats:
    codes, zeros, scales = (tensors[e].array() for e in (".qweight", ".qzeros", ".scales"))
    order = tensors[".g_idx"].array() if ".g_idx" in tensors else None
    return from_gptq(codes, zeros, scales, order, bits=_bits(settings), version=settings["version"]).numbers()


def _is_e2m1(tensors: Tensors) -> bool:
    return tensors[".weight_packed"].format.name == "U8"


def _packed_shape(tensors: Tensors, settings: Settings) -> Shape:
    codes = tensors[".weight_packed"]
    if _is_e2m1(tensors):
        return (codes.shape[0], codes.shape[1] * 2)
    if ".weight_shape" in tensors:
        n, k = (int(size) for size in tensors[".weight_shape"].array().reshape(-1)[:2])
        if min(n, k) < 1:
            raise ValueError(f"weight_shape is {[n, k]}")
        return n, k
    return codes.shape[0], codes.shape[1] * WORD // _bits(settings)


def _packed(tensors: Tensors, settings: Settings) -> Floats:
    if ".weight_g_idx" in tensors:
        raise ValueError("the order of its columns is another (weight_g_idx); wanted weights without")
    codes, scale = tensors[".weight_packed"], tensors[".weight_scale"]
    if _is_e2m1(tensors):
        return _small_floats(codes.array(), _scales(scale), tensors.get(".weight_global_scale"))
    n, k = _packed_shape(tensors, settings)
    zeros = tensors.get(".weight_zero_point")
    words = codes.array()
    bits = words.shape[1] * WORD // k
    scales = scale.array().reshape(n, -1)
    return from_compressed_tensors(words, scales, None if zeros is None else zeros.array(), bits=bits).numbers()


def _scales(scale: FileTensor) -> Floats:
    """Powers of two in a byte, or numbers."""
    return np.exp2(scale.array().astype(np.float32) - 127) if scale.format.name == "U8" else scale.dequantize()


def _small_floats(codes: np.ndarray[Any, Any], scales: Floats, overall: FileTensor | None) -> Floats:
    """Two codes of e2m1 a byte, the low half first, [.., k / 2], times scales [.., groups]."""
    numbers = _E2M1[np.stack([codes & 15, codes >> 4], -1)].reshape(*scales.shape, -1)
    made = (numbers * scales[..., None]).reshape(*codes.shape[:-1], -1)
    return made if overall is None else made / overall.dequantize().reshape(-1)[0]


def _blocks(tensors: Tensors, settings: Settings) -> Floats:
    """gpt-oss's experts, [experts, k, n] as its bf16 weights are."""
    codes = tensors["_blocks"].array()
    codes = codes.reshape(*codes.shape[:-2], -1)
    return _small_floats(codes, _scales(tensors["_scales"]), None).swapaxes(1, 2)


def _blocks_shape(tensors: Tensors, settings: Settings) -> Shape:
    experts, rows, groups, nbytes = tensors["_blocks"].shape
    return experts, groups * nbytes * 2, rows


def _mlx(tensors: Tensors, settings: Settings) -> Floats:
    codes, scales, biases = (tensors[e] for e in (".weight", ".scales", ".biases"))
    k, groups = _mlx_shape(tensors, settings)[1], scales.shape[1]
    bits = codes.shape[1] * WORD // k
    return AffineWeights(codes.array(), scales.dequantize(), biases.dequantize(), bits, k // groups).numbers()


def _mlx_shape(tensors: Tensors, settings: Settings) -> Shape:
    scales = tensors[".scales"].shape
    return scales[0], scales[1] * _size(settings, "group_size", MOST_GROUP)


def _int8(tensors: Tensors, settings: Settings) -> Floats:
    codes, scale = tensors[".weight"].array(), tensors[".weight_scale"].array()
    zeros = tensors.get(".weight_zero_point")
    scales = scale.reshape(len(codes), -1) if scale.size > 1 else np.broadcast_to(scale.reshape(1, 1), (len(codes), 1))
    return from_compressed_tensors(codes, scales, None if zeros is None else zeros.array()).numbers()


_QUESTION = (".weight_zero_point?", ".weight_shape?", ".weight_global_scale?", ".input_global_scale?", ".weight_g_idx?")
PACKINGS = (
    Packing(
        "AWQ",
        ".qweight",
        (".qzeros", ".scales"),
        lambda t, s: (t[".scales"].shape[1], t[".qweight"].shape[0]),
        _awq,
        method="awq",
    ),
    Packing(
        "GPTQ",
        ".qweight",
        (".qzeros", ".scales", ".g_idx?"),
        lambda t, s: (t[".scales"].shape[1], t[".qweight"].shape[0] * WORD // _bits(s)),
        _gptq,
        method="gptq",
    ),
    Packing("compressed-tensors", ".weight_packed", (".weight_scale", *_QUESTION), _packed_shape, _packed),
    Packing("MXFP4", "_blocks", ("_scales",), _blocks_shape, _blocks, of=""),
    Packing("MLX", ".weight", (".scales", ".biases"), _mlx_shape, _mlx),
    Packing("int8", ".weight", (".weight_scale", ".weight_zero_point?"), lambda t, s: tuple(t[".weight"].shape), _int8),
)
# The dtype of the codes, where tensors of other dtypes have the same endings.
_CODES = {"MLX": "U32", "int8": "I8"}


def find_packed(tensors: Tensors, config: HubConfig) -> tuple[dict[str, Packed], set[str]]:
    """The packed weights by name, and the names of all their tensors. Raises FormatError for a weight without its scales."""
    settings, found, used = settings_of(config), dict[str, Packed](), set[str]()
    for packing in PACKINGS:
        if packing.method and settings["method"] != packing.method:
            continue
        for name, tensor in tensors.items():
            if name in used or not name.endswith(packing.mark) or not _marks(packing, tensor):
                continue
            stem = name.removesuffix(packing.mark)
            parts = {end: tensors[stem + end] for end in packing.endings if stem + end in tensors}
            missing = [e for e in packing.parts if not e.endswith("?") and e not in parts]
            if missing:
                raise FormatError(f"{tensor.path}: {shown(name)} ({packing.name}) has no {shown(stem + missing[0])}")
            found[stem + packing.of] = Packed(packing, parts, settings)
            used |= {part.name for part in parts.values()}
    return found, used


def _marks(packing: Packing, tensor: FileTensor) -> bool:
    wanted = _CODES.get(packing.name)
    return tensor.format.name == wanted if wanted else True

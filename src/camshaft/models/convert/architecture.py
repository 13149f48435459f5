"""Architecture: how a class of transformers becomes a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from camshaft.formats.bits import Floats
from camshaft.models.convert.encoder_decoder import EncoderDecoder
from camshaft.models.convert.hub_config import HubConfig

Keys: TypeAlias = dict[str, Any]
MoreKeys: TypeAlias = Callable[[HubConfig], Keys]
Change: TypeAlias = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Architecture:
    """name: general.architecture. permuted: rows of q and k go from halves to pairs. norm_offset is added to weights of norms.

    keys: more metadata, under the architecture's prefix. transposed: matrices are stored [in, out]. defaults: what config.json
    leaves out, as transformers does for values that are its defaults. in_turn: heads of values share those of keys in turn.
    encoder_decoder: what takes the place of all this in models with an encoder and a decoder.
    numbers: keys of a number for each layer, without a prefix, by the ends of the names of their tensors.
    changes: what is made of a tensor of its own kind, by its name without 'blk.N.'. values and name_of: what of the config, and
    which architecture, follows from the config's values, of the file at a path.
    """

    name: str
    permuted: bool = False
    norm_offset: float = 0.0
    keys: tuple[MoreKeys, ...] = ()
    transposed: bool = False
    in_turn: bool = False
    numbers: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    encoder_decoder: EncoderDecoder | None = None
    changes: Callable[[str, HubConfig], Iterator[tuple[str, Change]]] = lambda name, config: iter(())
    values: Callable[[Mapping[str, Any], str], Mapping[str, Any]] = lambda values, path: values
    name_of: Callable[[Mapping[str, Any], str], str] | None = None

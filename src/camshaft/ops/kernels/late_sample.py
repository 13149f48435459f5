"""LateSample: inputs that are made when they are first asked for. Beside op.py, for ops whose samples take long to make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from camshaft.extent import Extent
from camshaft.ops.op import Array, Attrs, Sample
from camshaft.ops.spec import TensorSpec


class LateSample(Sample):
    """A Sample of which everything but the inputs is known: whoever wants those of some kinds (packing a format's weights takes
    a compilation) makes no others. What of `attrs` depends on the inputs is a function there."""

    def __init__(
        self,
        name: str,
        make: Callable[[], tuple[Array, ...]],
        attrs: Attrs,
        specs: tuple[TensorSpec, ...],
        extents: Mapping[Extent, int] | None = None,
    ) -> None:
        vars(self).update(name=name, attrs=attrs, specs=specs, extents=extents or {}, _make=make)

    @cached_property
    def inputs(self) -> tuple[Array, ...]:
        """What `make` gives, made once."""
        made: tuple[Array, ...] = vars(self)["_make"]()
        return made

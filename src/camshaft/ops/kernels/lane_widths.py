"""Lane width as a tunable of kernels written with k.lanes: more lanes than a vector has are independent vectors at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from camshaft.ops import op as ops

WIDTHS = (4, 8, 16, 32, 64, 128)
Builder = Callable[[ops.NodeSpec, ops.Target], ops.Build]


def lanes_of(build: Builder) -> ops.Tunables:
    """The tunable `lanes` for what `build` makes without one: its launches at another width, from a vector to eight of them."""
    return ops.Tunables(
        {"lanes": WIDTHS}, _native, lambda node, target, values: wider(build(node, target), target, values), refusal
    )


def row_lanes(columns: int, target: ops.Target) -> int | None:
    """Lanes of a kernel that folds rows: four vectors of a CPU where a row has many, so that no sum waits for the one before.
    None: the device's own."""
    return 4 * target.lanes if target.backend == "simd" and columns >= 16 * target.lanes else None


def wider(build: ops.Build, target: ops.Target, values: ops.Values) -> ops.Build:
    """The build with the launches' width; the device's own is left to the build."""
    if values["lanes"] == target.lanes:
        return build
    launches = tuple(replace(la, lanes=values["lanes"]) if isinstance(la, ops.Launch) else la for la in build.launches)
    return replace(build, launches=launches)


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Widths that are no vector's or several vectors' of a CPU."""
    if target.backend not in ("simd", "c"):
        return f"lanes are the device's own on {target.backend}"
    if not target.lanes <= values["lanes"] <= 8 * target.lanes:
        return f"{values['lanes']} lanes on a device of {target.lanes}"
    return None


def _native(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
    return {"lanes": target.lanes}

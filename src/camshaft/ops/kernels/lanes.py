"""The tunable `lanes`: on a CPU, k.lanes may process several vectors per iteration, with independent accumulators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from camshaft.ops import op as ops

LANES = (4, 8, 16, 32, 64, 128)
Builder = Callable[[ops.NodeSpec, ops.Target], ops.Build]


def tunables(build: Builder) -> ops.Tunables:
    """The tunable `lanes` of the launches that `build` makes: from one vector to eight."""

    def defaults(node: ops.NodeSpec, target: ops.Target) -> ops.Values:
        return {"lanes": target.lanes}

    return ops.Tunables(
        {"lanes": LANES},
        defaults,
        lambda node, target, values: with_lanes(build(node, target), target, values),
        refusal,
    )


def row_lanes(columns: int, target: ops.Target) -> int | None:
    """Lanes for a reduction over a row: four vectors on a CPU where the row has 16 or more, so that sums overlap; else None, the
    device's own."""
    return 4 * target.lanes if target.backend == "simd" and columns >= 16 * target.lanes else None


def with_lanes(build: ops.Build, target: ops.Target, values: ops.Values) -> ops.Build:
    """The build with these lanes in every launch. The device's own number leaves the build as it is."""
    if values["lanes"] == target.lanes:
        return build
    launches = tuple(replace(la, lanes=values["lanes"]) if isinstance(la, ops.Launch) else la for la in build.launches)
    return replace(build, launches=launches)


def refusal(node: ops.NodeSpec, target: ops.Target, values: ops.Values) -> str | None:
    """Why the target cannot use this number of lanes, or None."""
    if target.backend not in ("simd", "c"):
        return f"lanes are fixed on {target.backend}"
    if not target.lanes <= values["lanes"] <= 8 * target.lanes:
        return f"{values['lanes']} lanes on a device of {target.lanes}"
    return None

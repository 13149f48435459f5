"""Values and statements that are not rows of the instruction table, and who lowers each of them on each target.

'emitter': the target's emitter. 'simt': form.py rewrites it, so that the emitters of SIMT targets never meet it. 'tiles':
lang/expand/tiles.py rewrites it to other words (EXPANDED says why). 'matrix units': the emitter where a tile suits them
(emit/nvptx/tiles.py, llvm_units.py, msl_tiles.py), else as 'tiles'. An Absent cell is a refusal.
"""

from __future__ import annotations

from camshaft.lang.dialects import Cell

_SIMT_TARGETS = ("wgsl", "msl", "ptx")
_VECTOR_TARGETS = ("llvm", "c")


def _row(vector: Cell = "emitter", simt: Cell = "emitter", **other: Cell) -> dict[str, Cell]:
    """A row: `vector` on the CPU's targets, `simt` where a lane is a thread, but for the targets named."""
    row = {**dict.fromkeys(_VECTOR_TARGETS, vector), **dict.fromkeys(_SIMT_TARGETS, simt)}
    return {**row, **other}


STRUCTURAL: dict[str, dict[str, Cell]] = {
    "const": _row(),
    "program": _row(),
    "scalar": _row(),
    "index": _row(),
    "lane": _row(),
    "lane_count": _row(simt="simt"),
    "load": _row(),
    "var_get": _row(),
    "reduce": _row(),
    "splat": _row(simt="simt"),
    "iota": _row(simt="simt"),
    "element": _row(simt="simt"),
    "scan": _row(),
    "shuffle": _row(),
    "subgroup_lanes": _row(simt="simt"),
    "subgroup_reduce": _row(simt="simt"),
    "atomic": _row(),
    "vector_sum": _row(simt="simt"),
    "vector_max": _row(simt="simt"),
}
# The classes of lang/ir.py that are statements.
STATEMENTS: dict[str, dict[str, Cell]] = {
    **{name: _row() for name in ("VarNew", "VarSet", "Store", "Range", "When", "Barrier")},
    **{name: _row(simt="simt") for name in ("Lanes", "Prefetch")},
    **{
        name: _row("tiles", "tiles", llvm="matrix units", ptx="matrix units", msl="matrix units")
        for name in ("TileNew", "TileMma", "TileStore")
    },
    "TileScale": _row("tiles", "tiles", ptx="matrix units", msl="matrix units"),
    **{name: _row("tiles", "tiles", ptx="emitter") for name in ("AsyncCopy", "AsyncWait")},
}
# Why a target runs tiles and asynchronous copies in ordinary words: (tiles, copies).
EXPANDED: dict[str, tuple[str, str]] = {
    "llvm": (
        "CPUs' units take tiles of words alone (emit/llvm/matrix_unit.py)",
        "loads run ahead by themselves",
    ),
    "c": ("C has no words for matrix units", "C has no words for copies in the background"),
    "wgsl": (
        "WGSL has no matrix units: its subgroup matrices are an experiment of one browser",
        "WGSL has no such copies",
    ),
    "msl": ("Metal multiplies matrices of one type: operands of f32 alone", "Metal's are undocumented"),
}

"""Values and statements that are not rows of the instruction table, and who lowers each of them on each target.

'emitter': the target's emitter. 'simt': lang/simt/form.py, before the emitters of SIMT targets run. 'tiles':
lang/expand/tiles.py, which rewrites it to other instructions (EXPANDED gives the reason). 'matrix units': the emitter if the
tile fits the units (emit/nvptx/tiles.py, emit/llvm/matrix_unit.py, emit/msl/tiles.py), else as 'tiles'. Absent: a refusal.
"""

from __future__ import annotations

from camshaft.lang.dialects import Cell

_SIMT_TARGETS = ("wgsl", "msl", "ptx")
_VECTOR_TARGETS = ("llvm", "c")


def _row(vector: Cell = "emitter", simt: Cell = "emitter", **other: Cell) -> dict[str, Cell]:
    """Return a row: `vector` on CPU targets, `simt` on targets where a lane is a thread; keywords override single targets."""
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
# The statement classes of lang/ir.py.
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
# Why a target expands tiles and asynchronous copies to ordinary instructions: (tiles, copies).
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

"""Tables of what each target supports: structural values and statements, and dtypes.

STRUCTURAL and STATEMENTS say who lowers a value or a statement on each target. 'emitter': the target's emitter. 'simt':
lang/simt/form.py, before the emitters of SIMT targets run. 'tiles': lang/expand/tiles.py, which rewrites it to other
instructions (EXPANDED gives the reason). 'matrix units': the emitter if the tile fits the units (emit/nvptx/tiles.py,
emit/llvm/matrix_units/, emit/msl/tiles.py), else as 'tiles'. Absent: a refusal.

VALUES and ELEMENTS have a cell per dtype. A value's cell is the type's name in the target's text. An element's cell is 'native'
(the value's type), 'bits' (an unsigned integer of the same size, which the emitter widens and narrows), or 'packed' (several
elements in one 32-bit word, the smallest unit that the target can read).
"""

from __future__ import annotations

from camshaft.dtypes import DTYPES
from camshaft.lang.dialects import Absent, Cell

_SIMT_TARGETS = ("wgsl", "msl", "ptx")
_VECTOR_TARGETS = ("llvm", "c")


def _row(vector: Cell = "emitter", simt: Cell = "emitter", **other: Cell) -> dict[str, Cell]:
    """Return a row: `vector` on CPU targets, `simt` on targets where a lane is a thread; keywords override single targets."""
    row = {**dict.fromkeys(_VECTOR_TARGETS, vector), **dict.fromkeys(_SIMT_TARGETS, simt)}
    return {**row, **other}


_FOR_CPUS = Absent("vectors are packed, reversed and permuted by kernels for CPUs with LLVM alone")
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
    "pack": _row(simt=_FOR_CPUS, c=_FOR_CPUS),
    "partition": _row(simt=_FOR_CPUS, c=_FOR_CPUS),
    "reverse": _row(simt=_FOR_CPUS, c=_FOR_CPUS),
    "permute": _row(simt=_FOR_CPUS, c=_FOR_CPUS),
    "count": _row(simt=_FOR_CPUS, c=_FOR_CPUS),
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
        "CPUs' units take tiles of words alone (emit/llvm/matrix_units/)",
        "loads run ahead by themselves",
    ),
    "c": ("C has no words for matrix units", "C has no words for copies in the background"),
    "wgsl": (
        "WGSL has no matrix units: its subgroup matrices are an experiment of one browser",
        "WGSL has no such copies",
    ),
    "msl": ("Metal multiplies matrices of one type: operands of f32 alone", "Metal's are undocumented"),
}

TARGETS = ("llvm", "c", "wgsl", "msl", "ptx")

_LLVM: dict[str, Cell] = {
    "f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double", "i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64",
    "u8": "i8", "u16": "i16", "u32": "i32", "u64": "i64", "bool": "i1",
}  # fmt: skip
# 16-bit float values occur only between a cast and its store: C and WGSL represent them as an f32 rounded to 16 bits
_C: dict[str, Cell] = {
    "f16": "float", "bf16": "float", "f32": "float", "f64": "double", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t",
    "i64": "int64_t", "u8": "uint8_t", "u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "bool": "_Bool",
}  # fmt: skip
_NO_F64 = Absent("WGSL has no 64-bit floats")
_NO_U64 = Absent("WGSL has no 64-bit integers")
# i64 values are indexes and fit an i32, since no binding has 2^31 elements
_WGSL: dict[str, Cell] = {
    "f16": "f32", "bf16": "f32", "f32": "f32", "f64": _NO_F64, "i8": "i32", "i16": "i32", "i32": "i32", "i64": "i32",
    "u8": "u32", "u16": "u32", "u32": "u32", "u64": _NO_U64, "bool": "bool",
}  # fmt: skip
_MSL: dict[str, Cell] = {
    "f16": "half", "bf16": "float", "f32": "float", "f64": Absent("Metal has no 64-bit floats"), "i8": "char", "i16": "short",
    "i32": "int", "i64": "long", "u8": "uchar", "u16": "ushort", "u32": "uint", "u64": "ulong", "bool": "bool",
}  # fmt: skip

VALUES: dict[str, dict[str, Cell]] = {"llvm": _LLVM, "c": _C, "wgsl": _WGSL, "msl": _MSL, "ptx": _LLVM}

_BITS: dict[str, Cell] = {**dict.fromkeys(DTYPES, "native"), "f16": "bits", "bf16": "bits"}
_PACKED: dict[str, Cell] = {
    **dict.fromkeys(("f32", "i32", "u32"), "native"),
    **dict.fromkeys(("f16", "bf16", "i8", "i16", "u8", "u16", "bool"), "packed"),
    "f64": _NO_F64,
    "i64": Absent("WGSL has no 64-bit integers: an array of i64 cannot be read"),
    "u64": _NO_U64,
}

ELEMENTS: dict[str, dict[str, Cell]] = {
    "llvm": _BITS,
    "c": _BITS,
    "wgsl": _PACKED,
    "msl": {**_BITS, "f16": "native", "f64": _MSL["f64"]},
    "ptx": _BITS,
}

"""Functions of atomics in WGSL, one per kind and array, by the templates of lang/atomics.py.

WGSL has atomics of i32 and u32 only: an f32 is changed by its bits, in a loop.
"""

from __future__ import annotations

from collections.abc import Callable

from camshaft.lang.atomics import Atomic

_SWAP = """loop {{
        let swap = atomicCompareExchangeWeak(&{place}, expected, value);
        old = swap.old_value;
        if (swap.exchanged || old != expected) {{ break; }}
    }}"""
_ADD_F32 = """var bits = atomicLoad(&{place});
    loop {{
        let swap = atomicCompareExchangeWeak(&{place}, bits, bitcast<u32>(bitcast<f32>(bits) + value));
        if (swap.exchanged) {{ break; }}
        bits = swap.old_value;
    }}
    old = bitcast<f32>(bits);"""
# What the table leaves to the dialect's file.
_EXPANSIONS = {"compare_exchange": _SWAP, "atomic_add": _ADD_F32}


def function(name: str, row: Atomic, kind: str, held: str, index: str, choose: Callable[..., list[str]]) -> str:
    """`name`(i, operands): changes an element and gives the old one. `choose` writes statements on the element's place."""
    cell = row.wgsl[kind]
    assert isinstance(cell, str), f"atomic_{row.name} of kind {kind} was refused before"

    def change(place: str) -> str:
        if cell.startswith("expand:"):
            return _EXPANSIONS[cell.removeprefix("expand:")].format(place=place)
        return f"old = {cell.format(f'&{place}', 'value')};"

    operands = ["expected", "value"][-row.operands :]
    parameters = ", ".join(["i: i32", *(f"{o}: {held}" for o in operands)])
    lines = [f"fn {name}({parameters}) -> {held} {{", f"    let at = u32({index});", f"    var old: {held};"]
    return "\n".join([*lines, *choose("at", change), "    return old;", "}"])

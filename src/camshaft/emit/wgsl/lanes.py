"""Functions of WGSL in which the lanes of a workgroup meet: reductions, scans, shuffles, atomics.

Where a workgroup is no larger than the least subgroup, a reduction is a butterfly of subgroup shuffles: lane i is invocation i
there, as drivers number a workgroup of one dimension. The other functions use workgroup memory: all lanes call them in uniform
flow, they write `array` (one element per lane) and end with a barrier, so that the next function can reuse it
(workgroupUniformLoad includes one).
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
# Atomics that the table marks as "expand:NAME".
_EXPANSIONS = {"compare_exchange": _SWAP, "atomic_add": _ADD_F32}


def function(name: str, row: Atomic, kind: str, type_name: str, index: str, choose: Callable[..., list[str]]) -> str:
    """`name`(i, operands): changes an element and gives the old one. `choose` writes statements on the element's place."""
    cell = row.wgsl[kind]
    assert isinstance(cell, str), f"atomic_{row.name} of kind {kind} was refused before"

    def change(place: str) -> str:
        if cell.startswith("expand:"):
            return _EXPANSIONS[cell.removeprefix("expand:")].format(place=place)
        return f"old = {cell.format(f'&{place}', 'value')};"

    operands = ["expected", "value"][-row.operands :]
    parameters = ", ".join(["i: i32", *(f"{o}: {type_name}" for o in operands)])
    lines = [f"fn {name}({parameters}) -> {type_name} {{", f"    let at = u32({index});", f"    var old: {type_name};"]
    return "\n".join([*lines, *choose("at", change), "    return old;", "}"])


def reduce(name: str, type_name: str, array: str, n: int, both: str) -> str:
    """Lanes 0..n-1, the first half with the second until one is left. `both` combines array[lane] and array[lane + half]."""
    return f"""fn {name}(x: {type_name}, lane: i32) -> {type_name} {{
    {array}[lane] = x;
    for (var half = {n // 2}; half > 0; half /= 2) {{
        workgroupBarrier();
        if (lane < half) {{ {array}[lane] = {both}; }}
    }}
    return workgroupUniformLoad(&{array}[0]);
}}"""


def subgroup_reduce(name: str, type_name: str, n: int, lanes: int, both: str) -> str:
    """The same pairs as `reduce`, within one subgroup of `lanes`. `both` combines `total` and `theirs`."""
    result = "total" if n == lanes else "subgroupBroadcast(total, 0u)"
    return f"""fn {name}(x: {type_name}, lane: i32) -> {type_name} {{
    var total = x;
    for (var half = {n // 2}u; half > 0u; half /= 2u) {{
        let theirs = subgroupShuffleXor(total, half);
        total = {both};
    }}
    return {result};
}}"""


def broadcast(name: str, type_name: str, array: str) -> str:
    """One lane's value, for all."""
    return f"""fn {name}(x: {type_name}, from_lane: i32, lane: i32) -> {type_name} {{
    if (lane == from_lane) {{ {array}[0] = x; }}
    return workgroupUniformLoad(&{array}[0]);
}}"""


def shuffle(name: str, type_name: str, array: str) -> str:
    """The value of the lane that each asks for."""
    return f"""fn {name}(x: {type_name}, from_lane: i32, lane: i32) -> {type_name} {{
    {array}[lane] = x;
    workgroupBarrier();
    let theirs = {array}[from_lane];
    workgroupBarrier();
    return theirs;
}}"""


def scan(name: str, type_name: str, array: str, lanes: int, both: str, start: str | None) -> str:
    """Each lane's value with those below it, by doubling. `both` combines `below` and `total`; `start`: lane 0's if exclusive."""
    result = "total" if start is None else f"select({array}[max(lane - 1, 0)], {start}, lane == 0)"
    return f"""fn {name}(x: {type_name}, lane: i32) -> {type_name} {{
    var total = x;
    {array}[lane] = total;
    workgroupBarrier();
    for (var step = 1; step < {lanes}; step *= 2) {{
        let below = {array}[max(lane - step, 0)];
        workgroupBarrier();
        if (lane >= step) {{
            total = {both};
            {array}[lane] = total;
        }}
        workgroupBarrier();
    }}
    let result = {result};
    workgroupBarrier();
    return result;
}}"""

"""WGSL functions for collectives of a workgroup (reductions, scans, shuffles), and for atomics.

If a workgroup fits the smallest subgroup, a reduction is a butterfly of subgroup shuffles: lane i is invocation i there, as
drivers number a workgroup of one dimension. The other collectives use workgroup memory: all lanes call them in uniform control
flow, they write `array` (one element per lane) and end with a barrier, so that the next function can reuse it
(workgroupUniformLoad includes a barrier).
"""

from __future__ import annotations

from collections.abc import Callable

_SWAP = """loop {{
        let swap = atomicCompareExchangeWeak(&{variable}, expected, value);
        old = swap.old_value;
        if (swap.exchanged || old != expected) {{ break; }}
    }}"""
_ADD_F32 = """var bits = atomicLoad(&{variable});
    loop {{
        let swap = atomicCompareExchangeWeak(&{variable}, bits, bitcast<u32>(bitcast<f32>(bits) + value));
        if (swap.exchanged) {{ break; }}
        bits = swap.old_value;
    }}
    old = bitcast<f32>(bits);"""
# Atomics that the table marks as "expand:NAME".
_EXPANSIONS = {"compare_exchange": _SWAP, "atomic_add": _ADD_F32}


def atomic(name: str, cell: str, n_operands: int, typed: str, index: str, choose: Callable[..., list[str]]) -> str:
    """A function (i, operands) that changes an element and returns the old one. `choose` writes statements on the element."""

    def change(variable: str) -> str:
        if cell.startswith("expand:"):
            return _EXPANSIONS[cell.removeprefix("expand:")].format(variable=variable)
        return f"old = {cell.format(f'&{variable}', 'value')};"

    operands = ["expected", "value"][-n_operands:]
    parameters = ", ".join(["i: i32", *(f"{o}: {typed}" for o in operands)])
    lines = [f"fn {name}({parameters}) -> {typed} {{", f"    let at = u32({index});", f"    var old: {typed};"]
    return "\n".join([*lines, *choose("at", change), "    return old;", "}"])


def reduce(name: str, typed: str, array: str, n: int, both: str) -> str:
    """Lanes 0..n-1: the first half with the second until one is left. `both` combines array[lane] and array[lane + half]."""
    return f"""fn {name}(x: {typed}, lane: i32) -> {typed} {{
    {array}[lane] = x;
    for (var half = {n // 2}; half > 0; half /= 2) {{
        workgroupBarrier();
        if (lane < half) {{ {array}[lane] = {both}; }}
    }}
    return workgroupUniformLoad(&{array}[0]);
}}"""


def subgroup_reduce(name: str, typed: str, n: int, lanes: int, both: str) -> str:
    """The same pairs as `reduce`, within one subgroup of `lanes`. `both` combines `total` and `theirs`."""
    result = "total" if n == lanes else "subgroupBroadcast(total, 0u)"
    return f"""fn {name}(x: {typed}, lane: i32) -> {typed} {{
    var total = x;
    for (var half = {n // 2}u; half > 0u; half /= 2u) {{
        let theirs = subgroupShuffleXor(total, half);
        total = {both};
    }}
    return {result};
}}"""


def broadcast(name: str, typed: str, array: str) -> str:
    """One lane's value, for all lanes."""
    return f"""fn {name}(x: {typed}, from_lane: i32, lane: i32) -> {typed} {{
    if (lane == from_lane) {{ {array}[0] = x; }}
    return workgroupUniformLoad(&{array}[0]);
}}"""


def shuffle(name: str, typed: str, array: str) -> str:
    """The value of lane `from_lane`, which may differ per lane."""
    return f"""fn {name}(x: {typed}, from_lane: i32, lane: i32) -> {typed} {{
    {array}[lane] = x;
    workgroupBarrier();
    let theirs = {array}[from_lane];
    workgroupBarrier();
    return theirs;
}}"""


def scan(name: str, typed: str, array: str, lanes: int, both: str, start: str | None) -> str:
    """Each lane's value with those below, by doubling. `both` combines `below` and `total`. `start`: lane 0's, if exclusive."""
    result = "total" if start is None else f"select({array}[max(lane - 1, 0)], {start}, lane == 0)"
    return f"""fn {name}(x: {typed}, lane: i32) -> {typed} {{
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

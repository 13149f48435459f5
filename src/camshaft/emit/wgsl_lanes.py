"""Functions by which the lanes of a workgroup meet in WGSL: reductions, scans, shuffles through workgroup memory.

Each is called in uniform flow by all lanes, writes its `array` (an element per lane) and leaves it free for the next one: the
last thing it does is a barrier, that of workgroupUniformLoad among them. Used by emit/wgsl_body.py.
"""

from __future__ import annotations


def reduce(name: str, held: str, array: str, n: int, both: str) -> str:
    """Lanes 0..n-1, the first half with the second until one is left. `both` combines array[lane] and array[lane + half]."""
    return f"""fn {name}(x: {held}, lane: i32) -> {held} {{
    {array}[lane] = x;
    for (var half = {n // 2}; half > 0; half /= 2) {{
        workgroupBarrier();
        if (lane < half) {{ {array}[lane] = {both}; }}
    }}
    return workgroupUniformLoad(&{array}[0]);
}}"""


def broadcast(name: str, held: str, array: str) -> str:
    """One lane's value, for all."""
    return f"""fn {name}(x: {held}, from_lane: i32, lane: i32) -> {held} {{
    if (lane == from_lane) {{ {array}[0] = x; }}
    return workgroupUniformLoad(&{array}[0]);
}}"""


def shuffle(name: str, held: str, array: str) -> str:
    """The value of the lane that each asks for."""
    return f"""fn {name}(x: {held}, from_lane: i32, lane: i32) -> {held} {{
    {array}[lane] = x;
    workgroupBarrier();
    let theirs = {array}[from_lane];
    workgroupBarrier();
    return theirs;
}}"""


def scan(name: str, held: str, array: str, lanes: int, both: str, start: str | None) -> str:
    """Each lane's value with those below it, by doubling. `both` combines `below` and `total`; `start`: lane 0's if exclusive."""
    result = "total" if start is None else f"select({array}[max(lane - 1, 0)], {start}, lane == 0)"
    return f"""fn {name}(x: {held}, lane: i32) -> {held} {{
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

"""MSL functions for collectives of a threadgroup: reductions, scans, shuffles.

Values are exchanged in a SIMD-group if it contains all participants, else through `room`, threadgroup memory with one element
per thread. A barrier follows each function's last read of `room`, so that the next function can reuse it.
"""

from __future__ import annotations

# accumulator kind -> how two lanes' values combine, for floats and for integers
_COMBINE = {
    "sum": ("{a} + {b}", "{a} + {b}"),
    "max": ("maximum_f32({a}, {b})", "max({a}, {b})"),
    "min": ("minimum_f32({a}, {b})", "min({a}, {b})"),
}
_SYNC = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def combined(kind: str, is_float: bool, a: str, b: str) -> str:
    """Return the expression that combines two values."""
    return _COMBINE[kind][0 if is_float else 1].format(a=a, b=b)


def reduction(name: str, kind: str, type_name: str, is_float: bool, n: int, simd_width: int) -> str:
    """A function (x, room, lane) that combines lanes 0..n-1 for all threads: the first half with the second until one is left."""
    head = f"inline {type_name} {name}({type_name} x, threadgroup {type_name}* room, int lane) {{"
    if n <= simd_width:
        body = [*_butterfly(kind, is_float, n), "return x;"]
    elif simd_width:
        body = _two_levels(kind, type_name, is_float, n, simd_width)
    else:
        body = _tree(kind, type_name, is_float, n)
    return "\n".join([head, *(f"    {line}" for line in body), "}"])


def _butterfly(kind: str, is_float: bool, n: int) -> list[str]:
    """Within a SIMD-group. Both partners combine the same two values, so all threads get the same bits."""
    other = combined(kind, is_float, "x", "simd_shuffle_xor(x, step)")
    return [f"for (ushort step = {n // 2}; step > 0; step /= 2) {{", f"    x = {other};", "}"]


def _two_levels(kind: str, type_name: str, is_float: bool, n: int, simd_width: int) -> list[str]:
    """Each thread combines values that are a SIMD-group apart, then the SIMD-group its own: the order of halving over all n."""
    parts = n // simd_width
    return [
        "room[lane] = x;",
        _SYNC,
        f"{type_name} part[{parts}];",
        f"for (int j = 0; j < {parts}; ++j) {{",
        f"    part[j] = room[(lane & {simd_width - 1}) + {simd_width} * j];",
        "}",
        _SYNC,
        f"for (int half_way = {parts // 2}; half_way > 0; half_way /= 2) {{",
        "    for (int j = 0; j < half_way; ++j) {",
        f"        part[j] = {combined(kind, is_float, 'part[j]', 'part[j + half_way]')};",
        "    }",
        "}",
        "x = part[0];",
        *_butterfly(kind, is_float, simd_width),
        "return x;",
    ]


def _tree(kind: str, type_name: str, is_float: bool, n: int) -> list[str]:
    """In threadgroup memory only."""
    return [
        "room[lane] = x;",
        _SYNC,
        f"for (int half_way = {n // 2}; half_way > 0; half_way /= 2) {{",
        "    if (lane < half_way) {",
        f"        room[lane] = {combined(kind, is_float, 'room[lane]', 'room[lane + half_way]')};",
        "    }",
        f"    {_SYNC}",
        "}",
        f"const {type_name} result = room[0];",
        _SYNC,
        "return result;",
    ]


def shuffling(name: str, type_name: str) -> str:
    """A function (x, from, room, lane) that returns lane `from`'s x."""
    return "\n".join(
        [
            f"inline {type_name} {name}({type_name} x, int from, threadgroup {type_name}* room, int lane) {{",
            "    room[lane] = x;",
            f"    {_SYNC}",
            f"    const {type_name} result = room[from];",
            f"    {_SYNC}",
            "    return result;",
            "}",
        ]
    )


def scanning(name: str, kind: str, type_name: str, is_float: bool, lanes: int, start: str | None) -> str:
    """A function (x, room, lane) that combines lane i with i - 1, then i - 2, i - 4 and so on. `start`: lane 0's if exclusive."""
    head = f"inline {type_name} {name}({type_name} x, threadgroup {type_name}* room, int lane) {{"
    moved = ["room[lane] = x;", _SYNC, f"x = lane > 0 ? room[lane - 1] : {start};", _SYNC]
    body = [
        *(moved if start is not None else ()),
        f"for (int step = 1; step < {lanes}; step *= 2) {{",
        "    room[lane] = x;",
        f"    {_SYNC}",
        f"    x = lane >= step ? {combined(kind, is_float, 'x', 'room[lane - step]')} : x;",
        f"    {_SYNC}",
        "}",
        "return x;",
    ]
    return "\n".join([head, *(f"    {line}" for line in body), "}"])


def broadcasting(name: str, type_name: str) -> str:
    """A function (x, from, room, lane) that returns lane `from`'s x to all threads."""
    return "\n".join(
        [
            f"inline {type_name} {name}({type_name} x, int from, threadgroup {type_name}* room, int lane) {{",
            "    if (lane == from) {",
            "        room[0] = x;",
            "    }",
            f"    {_SYNC}",
            f"    const {type_name} result = room[0];",
            f"    {_SYNC}",
            "    return result;",
            "}",
        ]
    )

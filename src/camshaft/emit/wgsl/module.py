"""SIMT form to WGSL: one compute shader, a workgroup per program. emit/wgsl/layout.py describes its bindings.

The text declares the values of a run, the arrays, workgroup memory and helper functions, then the kernel, whose body body.py
writes. Programs are numbered along x, then y, of the dispatch; the last axis of the kernel's grid varies fastest.
"""

from __future__ import annotations

from math import prod

from camshaft.emit.c_family.statements import write_body
from camshaft.emit.wgsl import layout
from camshaft.emit.wgsl.body import context, fixed_word
from camshaft.emit.wgsl.context import WgslContext
from camshaft.emit.wgsl.layout import WgslBinding, WgslModule, WgslTarget
from camshaft.errors import KernelError
from camshaft.lang.expand.functions import expand_functions
from camshaft.lang.simt.form import SimtKernel


def emit(kernel: SimtKernel, target: WgslTarget) -> WgslModule:
    """Return the WGSL of a kernel. KernelError if it exceeds a limit of the target or uses what WGSL lacks."""
    body = context(expand_functions(kernel, "wgsl"), target)
    lines = write_body(body)
    bindings, declarations = _arrays(body)
    shared, shared_nbytes = _shared(body)
    _check(kernel, target, len(bindings), shared_nbytes)
    requires = _requires(body)
    enabled = ["f16"] if "shader-f16" in requires else []
    enabled += ["subgroups"] if "subgroups" in requires and target.enables_subgroups else []
    frame = [*(f"enable {name};" for name in enabled), *_run_words(kernel), *declarations, *shared, ""]
    functions = [line for text in body.all_functions() for line in (text, "")]
    entry = [*body.heading(), *_signature(kernel, body.entry), *_entry(kernel, body), *lines, "}"]
    return WgslModule(
        text="\n".join([*frame, *functions, *entry]) + "\n",
        entry=body.entry,
        lanes=kernel.lanes,
        bindings=bindings,
        itemsizes=tuple(a.dtype.nbytes for a in kernel.arrays),
        n_scalars=len(kernel.scalars),
        requires=requires,
        workgroup_nbytes=shared_nbytes,
        max_workgroups=target.max_workgroups,
    )


def _requires(body: WgslContext) -> frozenset[str]:
    """The device features that the text enables."""
    has_f16 = any(storage.has_f16 for storage in body.storage.values())
    shuffles = any("subgroupShuffle" in text for text in body.collectives.values())
    return frozenset([*(["shader-f16"] if has_f16 else []), *(["subgroups"] if shuffles else [])])


def _run_words(kernel: SimtKernel) -> list[str]:
    """The declarations of bindings 0 and 1."""
    vectors = layout.n_fixed(len(kernel.scalars), len(kernel.arrays)) // 4
    return [
        f"@group(0) @binding({layout.RUN_BINDING}) var<storage, read> run: array<i32>;",
        f"@group(0) @binding({layout.FIXED_BINDING}) var<uniform> fixed: array<vec4<i32>, {vectors}>;",
    ]


def _signature(kernel: SimtKernel, entry: str) -> list[str]:
    return [
        f"@compute @workgroup_size({kernel.lanes})",
        f"fn {entry}(",
        "    @builtin(workgroup_id) group: vec3<u32>,",
        "    @builtin(num_workgroups) groups: vec3<u32>,",
        "    @builtin(local_invocation_index) thread: u32,",
        ") {",
    ]


def _arrays(body: WgslContext) -> tuple[tuple[WgslBinding, ...], list[str]]:
    """The bindings of the arrays, and their declarations."""
    bindings: list[WgslBinding] = []
    declarations: list[str] = []
    for index, storage in enumerate(body.storage.values()):
        first = layout.FIRST_ARRAY_BINDING + len(bindings)
        declarations += storage.declarations(first)
        bindings += [
            WgslBinding(first + i, index, start, nbytes, storage.read_only)
            for i, (start, nbytes) in enumerate(storage.pieces)
        ]
    return tuple(bindings), declarations


def _shared(body: WgslContext) -> tuple[list[str], int]:
    """Declarations of workgroup memory, for scratch and collectives; and its size in bytes, 4 per element."""
    types = {body.array_names[a]: (body.scratch[a].type, prod(a.shape)) for a in body.simt.shared}
    types |= {name: (f"array<{typed}, {n}>", n) for typed, (name, n) in body.exchange.items()}
    lines = [f"var<workgroup> {name}: {typed};" for name, (typed, _) in types.items()]
    return lines, sum(4 * count for _, count in types.values())


def _check(kernel: SimtKernel, target: WgslTarget, n_arrays: int, shared_nbytes: int) -> None:
    """Raise KernelError if the kernel exceeds a limit of the adapter."""
    for what, has, most in (
        ("storage bindings", n_arrays + 1, target.max_bindings),
        ("bytes of workgroup memory", shared_nbytes, target.max_workgroup_nbytes),
        ("threads in a workgroup", kernel.lanes, target.max_threads),
    ):
        if has > most:
            raise KernelError(f"kernel {kernel.name}: {has} {what}; the adapter has at most {most}")


def _entry(kernel: SimtKernel, body: WgslContext) -> list[str]:
    """Compute the lane and the program's indexes; workgroups past the last program return."""
    lines = ["let lane = i32(thread);"]
    for i, name in enumerate(body.scalar_names):
        lines.append(f"let {name} = run[{fixed_word(len(layout.SPECIAL_WORDS) + i)}];")
    for array, storage in body.storage.items():
        if storage.is_direct:
            lines.append(f"let {body.starts[array]} = {storage.start};")
    sizes = body.grid_sizes()
    number = str(prod(d.size for d in kernel.grid if d.scalar is None))
    total = " * ".join([*([number] if number != "1" else []), *[s for s in sizes if not s.isdigit()]]) or number
    lines += [
        "let program = i32(group.x + group.y * groups.x);",
        f"if (program >= {total}) {{ return; }}",
    ]
    rest = "program"
    for axis in range(len(sizes) - 1, 0, -1):
        one = sizes[axis] == "1"
        lines.append(f"let {body.program_names[axis]} = {'0' if one else f'{rest} % {sizes[axis]}'};")
        rest = rest if one else f"{rest} / {sizes[axis]}"
    lines.append(f"let {body.program_names[0]} = {rest};")
    for array in kernel.private:
        lines.append(f"var {body.array_names[array]}: {body.scratch[array].type};")
    return [f"    {line}" for line in lines]

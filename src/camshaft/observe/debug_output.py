"""CAMSHAFT_DEBUG output on stderr and CAMSHAFT_DUMP files for compiled plans."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

from camshaft.errors import SettingError, StoreError
from camshaft.observe.kernel_texts import KernelTexts, kernel_texts
from camshaft.observe.profile import Profile
from camshaft.observe.rows import Row
from camshaft.plan.execution_plan import ExecutionPlan
from camshaft.plan.lowering.node_thunks import NodeRange
from camshaft.store.files import naming

_printed: set[str] = set()  # kernels whose source was printed already; plans share most kernels


def print_lines(text: str) -> None:
    """Print each line on stderr with the prefix 'camshaft: '."""
    for line in text.splitlines():
        print(f"camshaft: {line}", file=sys.stderr)


def print_plan(plan: ExecutionPlan, level: int) -> None:
    """Print a compiled plan. Level 1: summary; 3: choices; 4: each kernel's emitted source, once; 5: its assembly too."""
    if level >= 1:
        print_lines(summary(plan))
        for line in refuted(plan):
            print_lines(line)
    if level >= 3:
        print_lines(plan.explain())
    if level >= 4:
        for texts in _kernels(plan):
            if texts.stem not in _printed:
                _printed.add(texts.stem)
                _print_kernel(texts, level)


def _print_kernel(texts: KernelTexts, level: int) -> None:
    for name, text in texts.files().items():
        if name.endswith(f".{texts.suffix}") or (level >= 5 and name.endswith(".s")):
            print_lines(f"--- {name}\n{text}")


def summary(plan: ExecutionPlan) -> str:
    """One line: number of thunks and waits, devices, threads, arena size, compile time."""
    schedule, memory = plan.bound.schedule, plan.bound.memory_plan
    where = Counter(thunk.device if thunk.kind != "host" else "host thunks of Python" for thunk in schedule.thunks)
    places = ", ".join(f"{n} on {name}" for name, n in where.items())
    return (
        f"plan of {len(schedule.thunks)} thunks ({places}), {sum(schedule.waits)} waits, {plan.bound.threads} threads; arena "
        f"{memory.arena_nbytes + sum(memory.device_nbytes.values())} bytes for {memory.temp_nbytes_sum} bytes of temporaries; "
        f"built in {plan.compile_s:.3f} s"
    )


def refuted(plan: ExecutionPlan) -> list[str]:
    """A line for each op and shape where a measurement contradicts the cost model."""
    nodes = zip(plan.graph.nodes, plan.choices, strict=True)
    lines = [f"{n.op.name} of {', '.join(map(str, n.spec.inputs))}: {c.refuted}" for n, c in nodes if c.refuted]
    return list(dict.fromkeys(lines))


def print_run(profile: Profile) -> None:
    """Print a line per thunk of a timed run: time, rates, share of the machine's peak."""
    print_lines(f"ran in {profile.total_ns / 1e3:.1f} us, {profile.waited_share:.0%} of it at waits")
    for index, row in enumerate(profile.thunks):
        kind = f"{row.op}/{row.variant}"
        print_lines(f"{index:5d} {row.name:32s} {kind:40s} {rates(row)}")


def rates(row: Row) -> str:
    """Text such as '12.3 us   33.10 GB/s   66.2 GFLOP/s   82% of peak'; unknown values are a dash."""

    def text(value: float | None, form: str) -> str:
        return "-".rjust(9) if value is None else format(value, form)

    us = None if row.ns is None else row.ns / 1e3
    share = "" if row.peak_share is None else f"{row.peak_share:6.0%} of peak"
    return f"{text(us, '9.1f')} us {text(row.gb_per_s, '9.2f')} GB/s {text(row.gflop_per_s, '9.2f')} GFLOP/s {share}"


def dump(plan: ExecutionPlan, folder: Path) -> None:
    """Write the plan's schedule to a new numbered file, and the texts of every kernel. Raises SettingError on failure."""
    try:
        _write(plan, folder)
    except StoreError as error:
        raise SettingError(f"CAMSHAFT_DUMP={folder}: {error}") from error


def _write(plan: ExecutionPlan, folder: Path) -> None:
    with naming(folder, "cannot be written"):
        folder.mkdir(parents=True, exist_ok=True)
        numbers = [
            int(m[1]) for p in folder.glob("schedule-*.txt") if (m := re.fullmatch(r"schedule-(\d+)\.txt", p.name))
        ]
        listed = "\n".join(f"{origin.node.name}: {stems}" for origin in plan.origins if (stems := _stems(origin)))
        text = f"{summary(plan)}\n{plan.explain()}\nkernels:\n{listed}\n"
        (folder / f"schedule-{max(numbers, default=0) + 1}.txt").write_text(text, "utf-8")
        for texts in _kernels(plan):
            if not (folder / f"{texts.stem}.{texts.suffix}").exists():
                for name, content in texts.files().items():
                    (folder / name).write_text(content, "utf-8")


def _stems(origin: NodeRange) -> str:
    return " ".join(texts.stem for texts in kernel_texts(origin))


def _kernels(plan: ExecutionPlan) -> list[KernelTexts]:
    """The plan's distinct kernels."""
    kernels = {texts.stem: texts for origin in plan.origins for texts in kernel_texts(origin)}
    return list(kernels.values())

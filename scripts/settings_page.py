"""Writes docs/settings.md from the table of settings. Run by hand after a change: python scripts/settings_page.py."""

from __future__ import annotations

from pathlib import Path

from camshaft.settings import TABLE

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

HEAD = """# Settings

Every knob is an environment variable, read when a plan is built and never while it runs. One that is set to nothing is not
set; a value that cannot be used is an error that says what was wanted. `scripts/settings_page.py` writes this page from the
table in `src/camshaft/settings.py`.

| variable | may be | without it | what it does |
|---|---|---|---|
"""

TAIL = """
## The debug ladder

`CAMSHAFT_DEBUG` writes to stderr; each level adds to the one before.

| level | says |
|---|---|
| 1 | a line when a plan is built: thunks, where they run, waits, threads, arena |
| 2 | after each run of a whole plan a line per thunk: time, GB/s, GFLOP/s, share of the roof (measured, if it was not yet) |
| 3 | when a plan is built, the choice of every variant with its reason, and why the others lost |
| 4 | the emitted source of each kernel, once a process: LLVM IR, C, WGSL, PTX or MSL |
| 5 | the assembly of each kernel of the CPU |

## What is written and what is replaced

Runs that are told (`CAMSHAFT_DEBUG` from 2 on) or traced go through the timed form of the executor; parts of a plan that are run
alone are neither.

`CAMSHAFT_DUMP=dir` writes `schedule-N.txt` for each plan and, for each kernel, files that begin with its op, variant, name and
a digest of all that it is made for: `.ir` (the Kernel IR), `.ll`, `.c`, `.wgsl`, `.ptx` or `.metal` (the emitted source), `.s`
(the assembly, where LLVM makes it for this CPU).

`CAMSHAFT_OVERRIDE=dir` reads files of those names back. What can be replaced is the LLVM IR (`.ll`) of kernels of the CPU's
backends `simd`, `scalar` and `blas`; an edited file of another kind is an error. A file that says what camshaft would emit
changes nothing, so the folder of a dump serves as it is. A line on stderr names the thunks that were replaced, and `explain()`
shows them. LLVM verifies the text, and in the first run of a plan the nodes that it computes are compared with their ops'
references before anything goes on: a wrong kernel is an error there. It runs in this process, unguarded: one that writes
outside of its arrays may end it.

`CAMSHAFT_VALIDATE=1` runs plans node by node and compares each result with the op's float64 reference, at the op's own
tolerance. The error names thunk, op, variant and the greatest difference. Quantized weights are compared as the file has them,
so that packing is checked too. A caller's own function has no reference and only runs.

`CAMSHAFT_INTERPRET=1` runs the kernels of plans on the CPU by the interpreter, which checks every access. What is no kernel of
ours (BLAS) or lies on another device is an error.

`CAMSHAFT_TRACE=file.json` keeps what every worker did in every run of every plan and writes it when the process ends, up to a
million events. `CAMSHAFT_VALIDATE` goes before it: runs that are validated are not timed.
"""


def page() -> str:
    """The page's text."""
    rows = (f"| `{row.variable}` | {row.values} | {row.default} | {row.meaning} |" for row in TABLE)
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

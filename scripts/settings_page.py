"""Write docs/settings.md from the table of settings: python scripts/settings_page.py."""

from __future__ import annotations

from pathlib import Path

from camshaft.settings import TABLE

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"

HEAD = """# Settings

Every setting is an environment variable, read when a plan is compiled and never while it runs. An empty variable counts as
unset; an invalid value is an error that names the allowed values. `scripts/settings_page.py` writes this page from the table in
`src/camshaft/settings.py`.

| variable | values | default | meaning |
|---|---|---|---|
"""

TAIL = """
## Debug levels

`CAMSHAFT_DEBUG` prints to stderr; each level adds to the one before.

| level | prints |
|---|---|
| 1 | one line per compiled plan: thunks, devices, waits, threads, arena |
| 2 | one line per thunk after each complete run: time, GB/s, GFLOP/s, share of the machine's peak (measured if need be) |
| 3 | for each compiled plan the chosen variants with the reason, and why the others lost |
| 4 | the emitted source of each kernel, once per process: LLVM IR, C, WGSL, PTX or MSL |
| 5 | the assembly of each CPU kernel |

## Dump, override, validate, interpret, trace

Runs with `CAMSHAFT_DEBUG` from 2 on, and traced runs, use the executor with timestamps. Partial runs of a plan are neither
printed nor traced.

`CAMSHAFT_DUMP=dir` writes `schedule-N.txt` for each plan. For each kernel it writes files named by op, variant, kernel and a
digest of everything that the kernel depends on: `.ir` (Kernel IR), `.ll`, `.c`, `.wgsl`, `.ptx` or `.metal` (emitted source),
and `.s` (assembly, for LLVM kernels on the CPU).

`CAMSHAFT_OVERRIDE=dir` reads files of those names back. Only the LLVM IR (`.ll`) of the CPU backends `simd`, `scalar` and `blas`
can be replaced; an edited file of another kind is an error. Unedited files change nothing, so a dump folder can be used as is.
A line on stderr names the replaced thunks, and `explain()` shows them. LLVM verifies the text, and the first run of a plan
compares the nodes that it computes with their ops' references, so that a wrong kernel is an error. The code runs unprotected in
this process: a kernel that writes out of bounds may crash it.

`CAMSHAFT_VALIDATE=1` runs plans node by node and compares each result with the op's float64 reference, at the op's tolerance.
The error names thunk, op, variant and the greatest difference. Quantized weights are decoded from the file, so that packing is
checked too. Custom ops have no reference and only run.

`CAMSHAFT_INTERPRET=1` runs the kernels of CPU plans in the interpreter, which checks every access. Kernels without Kernel IR
(BLAS) and other devices are errors.

`CAMSHAFT_TRACE=file.json` records every run of every plan, up to a million events, and writes them when the process ends.
`CAMSHAFT_VALIDATE` takes precedence: validated runs are not timed.
"""


def page() -> str:
    """Return the page as Markdown."""
    rows = (f"| `{row.variable}` | {row.values} | {row.default} | {row.meaning} |" for row in TABLE)
    return HEAD + "\n".join(rows) + "\n" + TAIL


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")

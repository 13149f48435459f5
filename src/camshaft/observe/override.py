"""CAMSHAFT_OVERRIDE: kernels whose LLVM IR a person edited run in place of camshaft's own.

Read are files STEM.ll as CAMSHAFT_DUMP names them, for kernels of the CPU's backends simd and scalar and for calls of BLAS. One
that says what camshaft would emit changes nothing, so the folder of a dump will do. What is replaced is compared with its op's
reference in the plan's first run, before anything reads its result.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from camshaft.backends.cpu.device import CpuKernel, native_function
from camshaft.errors import SettingError
from camshaft.observe.kernel_texts import SYMBOL, KernelTexts, kernel_texts
from camshaft.plan.lowering.lower import Lowered

# Entry names in a text: @kernel, not @kernel_part.
_ENTRY = re.compile(rf"@{SYMBOL}\b(?![\w.$-])")


@dataclass(frozen=True)
class ReplacedKernel(CpuKernel):
    """The machine code of a file."""

    path: Path = Path()


def replaced(lowered: Lowered, folder: Path) -> list[str]:
    """Puts edited kernels in their place; the names of those thunks. SettingError for an edited file that is not one of
    LLVM IR, BackendError with LLVM's words for one that does not compile."""
    names = []
    for origin in lowered.origins:
        for index, texts in zip(range(origin.first, origin.last), kernel_texts(origin), strict=False):
            code = _edited(texts, folder)
            if code is not None:
                thunk = lowered.thunks[index]
                lowered.thunks[index] = replace(thunk, entry=code, reason=f"replaced by {code.path.name}")
                names.append(thunk.name)
    return names


def _edited(texts: KernelTexts, folder: Path) -> ReplacedKernel | None:
    for path in folder.glob(f"{texts.stem}.*"):
        said = path.read_text("utf-8")
        if path.suffix == ".ll" and texts.suffix == "ll" and texts.device.backend != "null":
            if said != texts.source:
                return _compiled(texts, path, said)
        elif texts.files().get(path.name, said) != said:
            raise SettingError(
                f"CAMSHAFT_OVERRIDE: {path} was edited; only the LLVM IR (.ll) of the CPU's kernels is read"
            )
    return None


def _compiled(texts: KernelTexts, path: Path, said: str) -> ReplacedKernel:
    if not _ENTRY.search(said):
        raise SettingError(f"CAMSHAFT_OVERRIDE: {path} does not define @{SYMBOL}")
    digest = hashlib.sha256(said.encode()).hexdigest()
    signature = f"override|{digest}|{texts.vectorize}"
    code = native_function(texts.launch.name, signature, lambda symbol: _ENTRY.sub(f"@{symbol}", said), texts.vectorize)
    return ReplacedKernel(code.name, code.address, code.library, code.key, path)

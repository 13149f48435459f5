"""CAMSHAFT_OVERRIDE: run hand-edited LLVM IR in place of camshaft's own kernels.

Reads files STEM.ll as written by CAMSHAFT_DUMP, for kernels of the backends simd and scalar and for BLAS calls. Unedited files
change nothing, so a dump folder can be used as is. A replaced kernel is compared with its op's reference in the first run.
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

# Matches the entry name @kernel, but not @kernel_part.
_ENTRY = re.compile(rf"@{SYMBOL}\b(?![\w.$-])")


@dataclass(frozen=True)
class ReplacedKernel(CpuKernel):
    """Machine code compiled from an edited file."""

    path: Path = Path()


def replaced(lowered: Lowered, folder: Path) -> list[str]:
    """Replace edited kernels and return the names of their thunks. Raises SettingError for an edited file other than LLVM IR,
    BackendError with LLVM's message if it does not compile."""
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
        content = path.read_text("utf-8")
        if path.suffix == ".ll" and texts.suffix == "ll" and texts.device.backend != "null":
            if content != texts.source:
                return _compiled(texts, path, content)
        elif texts.files().get(path.name, content) != content:
            raise SettingError(
                f"CAMSHAFT_OVERRIDE: {path} was edited; only the LLVM IR (.ll) of CPU kernels can be replaced"
            )
    return None


def _compiled(texts: KernelTexts, path: Path, source: str) -> ReplacedKernel:
    if not _ENTRY.search(source):
        raise SettingError(f"CAMSHAFT_OVERRIDE: {path} does not define @{SYMBOL}")
    digest = hashlib.sha256(source.encode()).hexdigest()
    signature = f"override|{digest}|{texts.vectorize}"
    code = native_function(
        texts.launch.name, signature, lambda symbol: _ENTRY.sub(f"@{symbol}", source), texts.vectorize
    )
    return ReplacedKernel(code.name, code.address, code.library, code.key, path)

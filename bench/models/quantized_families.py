"""Mean KL divergence of quantized models from their own f32, by family, beside llama.cpp's on the same files.

Run: python -m bench.models.quantized_families [--only WORD ...] [--types Q4_K_M Q8_0] [--draws N] [--json FILE]. Needs the extra
`oracles`. CAMSHAFT_CPU_FEATURES=avx512-bf16 measures activations of 8 bits on a CPU with AMX. The models are random, made by
transformers, with rows of 256 elements or more, so that every format has whole blocks. Both
libraries run the same file; each one's reference is its own f32 of the file that was quantized. Figures are means of several
texts of random tokens, of many for experts: a rounding that changes the choice of one counts more than all others, in about one
of 50 positions. Logits are divided so that their standard deviation is at most SPREAD. Wanted: at most 1.1 times llama.cpp's.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench import rows
from camshaft.formats.gguf.file import open_gguf
from scripts.oracles import quantized_families as families

N_DRAWS, N_DRAWS_OF_EXPERTS = 5, 60


def measured(name: str, types: list[str], draws: int | None, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each type of a family."""
    source = folder / f"{name}.gguf"
    families.write_source(name, source)
    n = draws or (N_DRAWS_OF_EXPERTS if families.has_experts(name) else N_DRAWS)
    texts = families.texts(n)
    exact, their_exact = families.ours(source, texts, "f32"), families.theirs(source, texts, exact=True)
    far = max(float(np.abs(a - b).max()) for a, b in zip(exact, their_exact, strict=True))
    for kind in families.types_of(name, types):
        path = folder / f"{name}-{kind}.gguf"
        families.write_quantized(source, path, kind)
        with open_gguf(path) as file:
            formats = sorted({tensor.format.name for tensor in file.tensors.values()} - {"F32"})
        mine = _divergences(exact, families.ours(path, texts, "auto"))
        their = _divergences(their_exact, families.theirs(path, texts, exact=False))
        yield {"bench": "quantized_families", "family": name, "type": kind, "formats": formats, "texts": n,
               "kl": float(np.mean(mine)), "llama.cpp": float(np.mean(their)), "ratio": float(np.mean(mine) / np.mean(their)),
               "f32 differs by": far, "ratio of each": [a / b for a, b in zip(mine, their, strict=True)]}  # fmt: skip
        path.unlink()


def _divergences(wanted: list[np.ndarray], came: list[np.ndarray]) -> list[float]:
    return [float(families.divergence(a, b).mean()) for a, b in zip(wanted, came, strict=True)]


def line_of(r: dict[str, Any]) -> str:
    """A row as a line; it says where both libraries' f32 differ much, as then they run different models."""
    far = f", f32 differs by {r['f32 differs by']:.2g}" if r["f32 differs by"] > 0.1 else ""
    figures = f"{r['kl']:10.2e} {r['llama.cpp']:10.2e} {r['ratio']:6.2f}"
    each = f"({min(r['ratio of each']):.2f} to {max(r['ratio of each']):.2f})"
    return f"{r['family']:16} {r['type']:10} {figures} {each}  {' '.join(r['formats'])}{far}"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], help="only families whose name contains one of these")
    parser.add_argument("--types", nargs="+", default=["Q4_K_M", "Q8_0"])
    parser.add_argument("--draws", type=int, help="texts of each family")
    parser.add_argument("--json", type=Path)
    options, made = parser.parse_args(), []
    print(f"{'family':16} {'type':10} {'KL':>10} {'llama.cpp':>10} {'ratio':>6}  formats")
    for name in (name for name in families.FAMILIES if any(word in name for word in options.only)):
        with tempfile.TemporaryDirectory() as folder:
            for r in measured(name, options.types, options.draws, Path(folder)):
                made.append(r)
                print(line_of(r), flush=True)
    rows.write(options.json, made)


if __name__ == "__main__":
    main()

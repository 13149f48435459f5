"""Mean KL divergence of quantized models from their own f32, by family, beside llama.cpp's on the same files; of encoders
1 - the cosine of texts' vectors.

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
from scripts.oracles import quantized_families as decoders
from scripts.oracles.encoders import quantized as encoders


def measured(name: str, types: list[str], draws: int | None, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each type of a family."""
    source, families = folder / f"{name}.gguf", _functions_of(name)
    families.write_source(name, source)
    n = draws or (families.N_TEXTS_OF_EXPERTS if families.has_experts(name) else families.N_TEXTS)
    texts = families.texts(n)
    exact, their_exact = families.ours(source, texts, "f32"), families.theirs(source, texts, exact=True)
    far = max(float(np.abs(a - b).max()) for a, b in zip(exact, their_exact, strict=True))
    for kind in families.types_of(name, types):
        path = folder / f"{name}-{kind}.gguf"
        decoders.write_quantized(source, path, kind)
        with open_gguf(path) as file:
            formats = sorted({tensor.format.name for tensor in file.tensors.values()} - {"F32"})
        mine = families.errors(exact, families.ours(path, texts, "auto"))
        their = families.errors(their_exact, families.theirs(path, texts, exact=False))
        yield {"bench": "quantized_families", "family": name, "type": kind, "formats": formats, "texts": n,
               families.MEASURE: float(np.mean(mine)), "llama.cpp": float(np.mean(their)),
               "ratio": float(np.mean(mine) / np.mean(their)),
               "f32 differs by": far, "ratio of each": [a / b for a, b in zip(mine, their, strict=True)]}  # fmt: skip
        path.unlink()


def _functions_of(name: str) -> Any:
    return encoders if name in encoders.FAMILIES else decoders


def line_of(r: dict[str, Any]) -> str:
    """A row as a line; it says where both libraries' f32 differ much, as then they run different models."""
    far = f", f32 differs by {r['f32 differs by']:.2g}" if r["f32 differs by"] > 0.1 else ""
    figures = f"{r[_functions_of(r['family']).MEASURE]:10.2e} {r['llama.cpp']:10.2e} {r['ratio']:6.2f}"
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
    print(f"{'family':16} {'type':10} {'error':>10} {'llama.cpp':>10} {'ratio':>6}  formats")
    for name in (n for n in (*decoders.FAMILIES, *encoders.FAMILIES) if any(word in n for word in options.only)):
        with tempfile.TemporaryDirectory() as folder:
            for r in measured(name, options.types, options.draws, Path(folder)):
                made.append(r)
                print(line_of(r), flush=True)
    rows.write(options.json, made)


if __name__ == "__main__":
    main()

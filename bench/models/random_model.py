"""A model of a known shape from random weights, to measure where no file of that shape is at hand. Its text is noise.

Run: python -m bench.models.random_model OUT.gguf [--type Q4_K_M] [--like qwen2-0.5b] [--tokenizer smollm2]. The vocabulary is
that of an existing model, filled up with unused tokens; llama.cpp opens the file too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.compare.random_model import SHAPES, make, make_repeating
from camshaft.models.files.pull import resolve_model


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="Q4_K_M", help="a file type of `camshaft quantize`")
    parser.add_argument("--like", choices=SHAPES, default="qwen2-0.5b")
    parser.add_argument("--tokenizer", default="smollm2", help="the model that gives the vocabulary")
    parser.add_argument(
        "--repeat-rows", action="store_true", help="each matrix repeats its first 256 rows: written at once"
    )
    options = parser.parse_args()
    if options.repeat_rows:
        make_repeating(SHAPES[options.like], resolve_model(options.tokenizer), options.out, options.type)
        print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")
        return
    made = make(SHAPES[options.like], resolve_model(options.tokenizer), options.out, options.type)
    print(f"{made.path}: {made.nbytes / 1e6:.0f} MB, {dict(made.n_tensors)}")


if __name__ == "__main__":
    main()

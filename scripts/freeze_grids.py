"""Write src/camshaft/formats/quants/grid_data.py: the grids of the IQ formats, from the `gguf` package.

Run: python scripts/freeze_grids.py. The grids came from a search (llama.cpp), so no rule makes them. Each is a set of rows of 4
or 8 indexes, in ascending order with the first index as the least digit: stored is a bit per possible row, compressed.
"""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import gguf
import numpy as np

TARGET = Path(__file__).parents[1] / "src/camshaft/formats/quants/grid_data.py"
HEAD = '''"""The grids of the IQ formats as sets of rows (iq_grids.py reads them). Made by scripts/freeze_grids.py."""

# A bit per possible row, the lowest bit of a byte first, compressed by zlib, in base 85.
'''


def packed(name: str) -> str:
    """Return the text of a grid."""
    kind = getattr(gguf.quants, name)
    kind.init_grid()
    base, rows = len(kind.grid_map), np.searchsorted(kind.grid_map, kind.grid.reshape(kind.grid_shape))
    numbers = rows @ base ** np.arange(rows.shape[1])
    assert (np.diff(numbers) > 0).all()
    bits = np.zeros(base ** rows.shape[1], bool)
    bits[numbers] = True
    return base64.b85encode(zlib.compress(np.packbits(bits, bitorder="little").tobytes(), 9)).decode()


def parts(text: str) -> list[str]:
    """Return pieces of a line's length."""
    return [text[first : first + 100] for first in range(0, len(text), 100)]


def main() -> None:
    """Write the file."""
    lines = [HEAD + "PACKED = {"]
    for name in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"):
        lines += [f'    "{name}": (', *(f'        "{part}"' for part in parts(packed(name))), "    ),"]
    TARGET.write_text("\n".join([*lines, "}"]) + "\n")


if __name__ == "__main__":
    main()

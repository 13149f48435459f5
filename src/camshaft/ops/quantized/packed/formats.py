"""PACKED_FORMATS: the bits, scales and tables of every block format in the packed layout (packing.py)."""

from __future__ import annotations

from dataclasses import dataclass

from camshaft.dtypes import DType, f16, i8, u8
from camshaft.formats.bits import E2M1_DOUBLED, IQ4_VALUES
from camshaft.formats.quants.iq_grids import GRIDS

BLOCK = 32  # k per block of the packed layout


@dataclass(frozen=True)
class PackedFormat:
    """The packed form of a block format: `bits` per code, `group` k per scale, and the scales' dtype (8-bit integers if
    nested). `zero_point` is None if minima are stored. `is_joint`: scale and minimum share a byte. `table`: the 16 values of
    the codes, plus the zero point. `is_exponent`: a scale is 2^(byte - 128); `is_e4m3`: half an E4M3 byte. `unit`: the steps of
    nested scales are stored divided by it."""

    bits: int
    group: int
    scale_dtype: DType
    zero_point: int | None
    is_joint: bool = False
    table: tuple[int, ...] | None = None
    is_exponent: bool = False
    is_e4m3: bool = False
    unit: float = 1.0

    @property
    def has_minima(self) -> bool:
        """Whether minima are stored."""
        return self.zero_point is None

    @property
    def sums(self) -> tuple[int, int]:
        """The kind of activation sums that it needs: a key of quantize_activations.LAYOUTS."""
        return self.group, self.zero_point or 0

    @property
    def is_nested(self) -> bool:
        """Whether scales are integer multiples of steps."""
        return self.scale_dtype in (i8, u8) and not (self.is_exponent or self.is_e4m3)

    @property
    def groups(self) -> int:
        """Scales per row and block of 32."""
        return BLOCK // self.group


_IQ4 = tuple(int(value) + 128 for value in IQ4_VALUES)
_E2M1 = tuple(int(value) + 12 for value in E2M1_DOUBLED)


def _signed(name: str, zero_point: int, unit: int = 1) -> tuple[int, ...]:
    """The numbers of a grid's levels in `unit`, then of those below zero, 16 in all; levels of 3 are indexes of 2 bits."""
    levels = tuple(level // unit for level in GRIDS[name].levels)
    spare = (0,) * ((1 << (len(levels) - 1).bit_length()) - len(levels))
    half = (*levels, *spare)
    return _table((*half, *(-level for level in half)), zero_point)


def _table(numbers: tuple[int, ...], zero_point: int) -> tuple[int, ...]:
    return tuple(number + zero_point for number in numbers) + (0,) * (16 - len(numbers))


# Codes up to 127, of which AVX2 adds two products in 16 bits without their signs; of those up to 64, as the halves of IQ3_XXS's
# even levels, four.
_MIDDLE = 64
_IQ2 = _signed("IQ2_S", _MIDDLE)
# 8 level +- 1 of IQ1's levels -1, 0 and 1, in units of d / 8
_IQ1 = _table((-7, 1, 9, 0, -9, -1, 7, 0), 12)
PACKED_FORMATS: dict[str, PackedFormat] = {
    "Q4_0": PackedFormat(4, 32, f16, 8),
    "Q4_1": PackedFormat(4, 32, f16, None),
    "Q5_0": PackedFormat(5, 32, f16, 16),
    "Q5_1": PackedFormat(5, 32, f16, None),
    "Q8_0": PackedFormat(8, 32, f16, 128),
    "Q2_K": PackedFormat(2, 16, u8, None, is_joint=True),
    "Q3_K": PackedFormat(3, 16, i8, 4),
    "Q4_K": PackedFormat(4, 32, u8, None),
    "Q5_K": PackedFormat(5, 32, u8, None),
    "Q6_K": PackedFormat(6, 16, i8, 32),
    "IQ4_NL": PackedFormat(4, 32, f16, 128, table=_IQ4),
    "IQ4_XS": PackedFormat(4, 32, i8, 128, table=_IQ4),
    "MXFP4": PackedFormat(4, 32, u8, 12, table=_E2M1, is_exponent=True),
    "NVFP4": PackedFormat(4, 16, u8, 12, table=_E2M1, is_e4m3=True),
    "IQ1_S": PackedFormat(2, 32, u8, None, unit=1 / 8),
    "IQ1_M": PackedFormat(3, 16, i8, 12, table=_IQ1, unit=1 / 8),
    "IQ2_XXS": PackedFormat(3, 32, i8, _MIDDLE, table=_IQ2, unit=1 / 8),
    "IQ2_XS": PackedFormat(3, 16, i8, _MIDDLE, table=_IQ2, unit=1 / 8),
    "IQ2_S": PackedFormat(3, 16, i8, _MIDDLE, table=_IQ2, unit=1 / 8),
    "IQ3_XXS": PackedFormat(4, 32, i8, 32, table=_signed("IQ3_XXS", 32, unit=2), unit=1 / 2),
    "IQ3_S": PackedFormat(4, 32, i8, 16, table=_signed("IQ3_S", 16)),
    "TQ1_0": PackedFormat(2, 32, i8, 1),
    "TQ2_0": PackedFormat(2, 32, i8, 1),
}

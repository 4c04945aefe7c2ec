"""Numbers and tables as text: `1.234 ms`, `25.2 MB`, `78.6 TFLOP/s`, columns aligned."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_SMALL_PREFIXES = ((1e-3, "m"), (1e-6, "u"), (1e-9, "n"), (1e-12, "p"))


def prefix_of(value: float, unit: str) -> tuple[float, str]:
    """Scale and prefix that leave one to three digits before the point; seconds never become kiloseconds, bytes never mB."""
    size = abs(value)
    if not 0 < size < math.inf:
        return 1.0, ""
    prefixes = {"s": _PREFIXES[5:] + _SMALL_PREFIXES, "J": _PREFIXES + _SMALL_PREFIXES, "W": _PREFIXES + _SMALL_PREFIXES}.get(
        unit, _PREFIXES
    )
    size *= 1 + 5e-4  # 999.96 us reads as 1.000 ms
    return next(((scale, prefix) for scale, prefix in prefixes if size >= scale), prefixes[-1])


def quantity(value: float, unit: str, digits: int = 4) -> str:
    """A value in its SI unit with a decimal prefix and `digits` significant digits: `quantity(1.2e-3, "s") == "1.2 ms"`."""
    scale, prefix = prefix_of(value, unit)
    return f"{value / scale:.{digits}g} {prefix}{unit}".rstrip()


def share(value: float) -> str:
    """A share as per cent with one decimal: `12.5 %`."""
    return f"{100 * value:.1f} %"


def times(factor: float) -> str:
    """A factor in words: `1.72 times`, `1,180 times`."""
    return f"{factor:,.0f} times" if factor >= 100 else f"{factor:.3g} times"


def aligned(rows: Sequence[Sequence[str]], align: str, indent: str = "  ") -> list[str]:
    """Rows of cells as lines of equal columns; `align` has one `<` or `>` per column."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(align))] if rows else []
    lines = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)) for row in rows]
    return [f"{indent}{line}".rstrip() for line in lines]


def html_table(rows: Sequence[Sequence[str]], align: str) -> str:
    """Rows of cells as an HTML table; the first is its head."""
    sides = ["left" if side == "<" else "right" for side in align]

    def line(row: Sequence[str], tag: str) -> str:
        cells = (f'<{tag} style="text-align:{side}">{html.escape(cell)}</{tag}>' for cell, side in zip(row, sides, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    return f"<table>{line(rows[0], 'th')}{''.join(line(row, 'td') for row in rows[1:])}</table>"

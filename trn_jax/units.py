"""Units live in names: `clock_hz`, `size_bytes`, `bandwidth_bytes_per_s`, `latency_s`; this file reads and prints them.

name ends in   unit    power of seconds
_hz            Hz      -1
_bytes_per_s   B/s     -1
_flop_per_s    FLOP/s  -1
_s             s       +1
_bytes         B        0
_j             J        0        (energy is a unit of its own here)
_j_per_byte    J/B      0
_w             W       -1
_cycles, _columns, nothing: a count or a share, 0
"""

from __future__ import annotations

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30
KB, MB, GB, TB = 1e3, 1e6, 1e9, 1e12
KHZ, MHZ, GHZ = 1e3, 1e6, 1e9
NS, US, MS = 1e-9, 1e-6, 1e-3

_SUFFIXES = {
    "_bytes_per_s": "B/s",
    "_flop_per_s": "FLOP/s",
    "_hz": "Hz",
    "_bytes": "B",
    "_cycles": "cycles",
    "_columns": "columns",
    "_s": "s",
    "_j_per_byte": "J/B",
    "_j": "J",
    "_w": "W",
}
_BINARY = ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SMALL = ((1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"), (1e-12, "p"), (1e-15, "f"))


def unit_of(name: str) -> str:
    """The unit a name ends in, as printed ("Hz", "B/s", "FLOP/s", "B", "s", "J", "W", "cycles", "columns"), or "" for counts and shares."""
    return next((unit for suffix, unit in _SUFFIXES.items() if name.endswith(suffix)), "")


def time_power(name: str) -> int:
    """The power of seconds in a name's unit: `tensor.clock_hz` -1, `dma.latency_s` +1, `sbuf.size_bytes` 0."""
    if name.endswith(("_hz", "_per_s", "_w")):
        return -1
    return 1 if name.endswith("_s") else 0


def format_quantity(value: float, unit: str) -> str:
    """A number with its unit in the prefix a reader expects: `2.4 GHz`, `28 MiB`, `435.2 GB/s`, `1.3 us`, `0.861`.

    Args:
        value: A Python float in the SI unit.
        unit: As `unit_of` returns it.

    Returns:
        Text with up to six significant digits; the exact number is in the chip, not in the text.
    """
    size = abs(value)
    if unit == "B":
        for scale, prefix in _BINARY:
            if size >= scale and value % (scale / 8) == 0:
                return f"{value / scale:.6g} {prefix}"
    elif unit in ("Hz", "B/s", "FLOP/s"):
        for scale, prefix in _DECIMAL:
            if size >= scale:
                return f"{value / scale:.6g} {prefix}{unit}"
    elif unit in ("s", "J", "J/B"):
        for scale, prefix in _SMALL:
            if size >= scale * (1 - 1e-12):
                return f"{value / scale:.6g} {prefix}{unit}"
    return f"{value:.6g} {unit}".rstrip()

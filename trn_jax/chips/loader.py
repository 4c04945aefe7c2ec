"""Reads chip files: the one place where a description is validated, with errors that name file, key, value and range.

    [tensor]
    clock_hz = { value = 2.4e9, basis = "documented", source = "NKI guide, Trainium2 architecture: Tensor Engine" }

Every key carries its unit, every number its basis and source; `note`, `low` and `high` are optional. A file that names a
`base` preset gives only what differs from it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from trn_jax.chips.fields import BASES, RANGES, checked_formats, checked_number
from trn_jax.chips.schema import Chip, Dma, Energy, GpSimd, Hbm, Link, Psum, Sbuf, Scalar, Tensor, Vector
from trn_jax.errors import ChipError, did_you_mean
from trn_jax.units import unit_of

_GROUPS = {
    "tensor": Tensor,
    "vector": Vector,
    "scalar": Scalar,
    "gpsimd": GpSimd,
    "sbuf": Sbuf,
    "psum": Psum,
    "dma": Dma,
    "hbm": Hbm,
    "link": Link,
    "energy": Energy,
}
_HEADER = ("name", "core", "base", "rounds", "formats", "psum_formats", "cores")
_ENTRY_KEYS = ("value", "basis", "source", "note", "low", "high")


class Entry(NamedTuple):
    """One value of a chip file with where it comes from."""

    value: Any
    basis: str
    source: str
    note: str = ""
    low: float | None = None
    high: float | None = None


class Row(NamedTuple):
    """One line of a printed chip: `unit` is what the key ends in; `low` and `high` say how uncertain the value is."""

    key: str
    value: Any
    unit: str
    basis: str
    source: str
    note: str
    low: float | None
    high: float | None


class Description(NamedTuple):
    """A validated chip file: dotted key to entry, plus what is not a number."""

    name: str
    core: str
    rounds: bool
    psum_formats: tuple[str, ...]
    entries: dict[str, Entry]


def list_chips() -> list[str]:
    """Names of the chips that come with trn_jax, for `load_chip`."""
    files = resources.files("trn_jax.chips").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


def load_chip(name_or_path: str | os.PathLike[str]) -> Chip:
    """Loads a chip by name, or from a TOML file of your own.

    Args:
        name_or_path: One of `list_chips()`, or a path: a `pathlib.Path`, or text that ends in `.toml` or has a separator in it.

    Returns:
        A Chip whose leaves are Python floats in SI units, so that loading twice never costs a second jit trace.

    Raises:
        ChipError: If there is no such chip or file, if it is no TOML, or if a key is unknown, missing, without basis or
            source, of the wrong type, or out of range. The message names file, key, value and what is allowed.
    """
    about = describe(name_or_path)
    values = {path: entry.value for path, entry in about.entries.items()}
    groups = {
        group: record(**{path.removeprefix(f"{group}."): value for path, value in values.items() if path.startswith(f"{group}.")})
        for group, record in _GROUPS.items()
    }
    return Chip(
        name=about.name,
        core=about.core,
        rounds=about.rounds,
        formats=values["formats"],
        psum_formats=about.psum_formats,
        cores=values["cores"],
        uncertainty=tuple(
            (path, entry.low / entry.value, entry.high / entry.value)
            for path, entry in about.entries.items()
            if path.startswith("energy.") and entry.low is not None and entry.high is not None and entry.value
        ),
        **groups,
    )


def describe_chip(name_or_path: str | os.PathLike[str]) -> list[Row]:
    """Every value of a chip with its unit, basis, source and note, in the order of the record; formats first.

    Raises:
        ChipError: As `load_chip`.
    """
    entries = describe(name_or_path).entries
    return [Row(path, e.value, unit_of(path), e.basis, e.source, e.note, e.low, e.high) for path, e in entries.items()]


def describe(name_or_path: str | os.PathLike[str]) -> Description:
    """The validated contents of a chip file, its base included. Raises ChipError as `load_chip`."""
    if not isinstance(name_or_path, (str, os.PathLike)):
        raise ChipError(
            f"load_chip: got {name_or_path!r}; give a chip's name or the path of a TOML file. Known: {', '.join(list_chips())}."
        )
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and not text.endswith(".toml") and not any(sep and sep in text for sep in (os.sep, os.altsep, "/")):
        return _preset(text)
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte order mark
    except FileNotFoundError:
        raise ChipError(f"{path}: there is no such chip file. Give a path that exists, or one of: {', '.join(list_chips())}.") from None
    except UnicodeDecodeError as error:
        raise ChipError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); a chip file is TOML.") from None
    except OSError as error:
        raise ChipError(f"{path}: cannot be read as a chip file: {error.strerror}.") from None
    return _parse(content, where=str(path), default_name=path.stem)


@cache
def _preset(name: str) -> Description:
    if name not in list_chips():
        raise ChipError(
            f"No chip is called {name!r}. {did_you_mean(name, list_chips())} For a chip of your own, give the path of a .toml file."
        )
    content = resources.files("trn_jax.chips").joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return _parse(content, where=f"{name}.toml", default_name=name)


def _parse(content: str, where: str, default_name: str) -> Description:
    try:
        document = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ChipError(f"{where}: not valid TOML: {error}.") from None
    base = _base(document, where)
    given = {path: _entry(where, path, value) for path, value in _flatten(document, where).items()}
    entries = {**(base.entries if base else {}), **given}
    missing = [path for path in ("formats", *RANGES) if path not in entries]
    if missing:
        raise ChipError(
            f'{where}: {len(missing)} values are missing: {", ".join(missing)}. Give them, or write base = "trainium2" (or another of '
            f"{', '.join(list_chips())}) at the top to take them from there."
        )
    return Description(
        name=_text(document, "name", where, default_name),
        core=_text(document, "core", where, base.core if base else None),
        rounds=_rounds(document, where, base),
        psum_formats=_psum_formats(document, where, base),
        entries={path: entries[path] for path in ("formats", *RANGES)},
    )


def _base(document: Mapping[str, Any], where: str) -> Description | None:
    if "base" not in document:
        return None
    name = document["base"]
    if name not in list_chips():
        raise ChipError(f"{where}: base = {name!r} is not a chip that comes with trn_jax. {did_you_mean(str(name), list_chips())}")
    return _preset(name)


def _flatten(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Dotted key to raw entry, after every key has been recognised."""
    raw: dict[str, Any] = {}
    for key, value in document.items():
        if key in _GROUPS:
            if not isinstance(value, Mapping):
                raise ChipError(f"{where}: {key} = {value!r} must be a table: start it with [{key}].")
            raw.update({f"{key}.{inner}": entry for inner, entry in value.items()})
        elif key in ("formats", "cores"):
            raw[key] = value
        elif key not in _HEADER:
            raise ChipError(f"{where}: unknown key {key!r}. {did_you_mean(key, [*_HEADER, *_GROUPS])}")
    for path in raw:
        if path not in RANGES and path != "formats":
            _reject(where, path)
    return raw


def _reject(where: str, path: str) -> None:
    """An unknown key: most often one without its unit, or misspelt."""
    group, _, key = path.rpartition(".")
    with_unit = [name for name in RANGES if name.startswith(f"{path}_") and unit_of(name)]
    if with_unit:
        raise ChipError(f"{where}: {path} has no unit in its key; write {' or '.join(with_unit)}.")
    known = [name.removeprefix(f"{group}.") for name in RANGES if name.startswith(f"{group}.")]
    raise ChipError(f"{where}: unknown key {key!r} in [{group}]. {did_you_mean(key, known)}")


def _entry(where: str, path: str, raw: Any) -> Entry:
    """One validated entry: value in range, a known basis, a source, and an uncertainty that contains the value."""
    if not isinstance(raw, Mapping):
        shown = raw if isinstance(raw, (int, float)) and not isinstance(raw, bool) else "..."
        raise ChipError(
            f"{where}: {path} = {raw!r} has no basis and no source. Write "
            f'{{ value = {shown}, basis = "assumed", source = "where it comes from" }}; basis is one of {", ".join(BASES)}.'
        )
    for key in raw:
        if key not in _ENTRY_KEYS:
            raise ChipError(f"{where}: {path} has an unknown part {key!r}. {did_you_mean(key, _ENTRY_KEYS)}")
    for key in ("value", "basis", "source"):
        if key not in raw:
            raise ChipError(f"{where}: {path} has no {key}. Every value needs value, basis (one of {', '.join(BASES)}) and source.")
    for key in ("basis", "source", "note"):
        if not isinstance(raw.get(key, "-"), str) or not raw.get(key, "-").strip():
            raise ChipError(f"{where}: {path} has {key} = {raw[key]!r}; give a text that is not empty.")
    if raw["basis"] not in BASES:
        raise ChipError(f"{where}: {path} has basis = {raw['basis']!r}. {did_you_mean(raw['basis'], BASES)}")
    if path in ("formats", "psum_formats"):
        return Entry(checked_formats(where, raw["value"], path), raw["basis"], raw["source"], raw.get("note", ""))
    value = checked_number(where, path, raw["value"])
    if ("low" in raw) != ("high" in raw):
        raise ChipError(f"{where}: {path} has only one of low and high; give both ends of the range, or neither.")
    low, high = (checked_number(f"{where} ({end})", path, raw[end]) if end in raw else None for end in ("low", "high"))
    if low is not None and high is not None and not low <= value <= high:
        raise ChipError(f"{where}: {path} = {value:g} lies outside its own low = {low} and high = {high}.")
    return Entry(value, raw["basis"], raw["source"], raw.get("note", ""), low, high)


def _text(document: Mapping[str, Any], key: str, where: str, default: str | None) -> str:
    value = document.get(key, default)
    if value is None:
        raise ChipError(f'{where}: {key} is missing; write for example {key} = "NeuronCore-v3".')
    if not isinstance(value, str) or not value.strip():
        raise ChipError(f"{where}: {key} = {value!r} must be a text that is not empty.")
    return value


def _psum_formats(document: Mapping[str, Any], where: str, base: Description | None) -> tuple[str, ...]:
    """What PSUM accumulates in: fp32, as on every chip before Trainium3, unless the file or its base says otherwise."""
    if "psum_formats" in document:
        return _entry(where, "psum_formats", document["psum_formats"]).value
    return base.psum_formats if base else ("fp32",)


def _rounds(document: Mapping[str, Any], where: str, base: Description | None) -> bool:
    value = document.get("rounds", base.rounds if base else True)
    if not isinstance(value, bool):
        raise ChipError(f"{where}: rounds = {value!r} must be true or false.")
    return value

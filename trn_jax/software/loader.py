"""Reads a software block: the TOML files of this package, each value with its basis and source."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources

from trn_jax.errors import ProgramError, did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Overheads of one family of releases.

    Attributes:
        name: Of the block.
        release: Releases it was read from.
        launch_s: From asking for a kernel to its first instruction, as benchmarks on the host see it; 0 in profiler totals.
        sources: Source of each overhead.
        ranges: Lowest and highest value that the evidence of each allows.
    """

    name: str
    release: str
    launch_s: float
    sources: dict[str, str]
    ranges: dict[str, tuple[float, float]]


def load_software(name: str = "neuron") -> Software:
    """A software block by name.

    Raises:
        ProgramError: There is none of this name.

    Units: seconds. Gradient: none. Basis: as the file says.
    """
    folder = resources.files("trn_jax.software")
    names = sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
    if name not in names:
        raise ProgramError(f"There is no software block {name!r}. {did_you_mean(name, names)}")
    block = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    overheads = block["overheads"]
    return Software(
        name=name,
        release=block["release"],
        launch_s=float(overheads["launch_s"]["value"]),
        sources={key: f"{entry['basis']}: {entry['source']}" for key, entry in overheads.items()},
        ranges={key: (float(entry["low"]), float(entry["high"])) for key, entry in overheads.items()},
    )

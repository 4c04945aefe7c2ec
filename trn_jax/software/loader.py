"""Reads a software block: the TOML files of this package, one per family of releases, each value with its basis and source."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources

from trn_jax.errors import ProgramError, did_you_mean

ANY_CORE = "any"
_RELEASE = re.compile(r"v?(\d+)\.(\d+)(?:\.\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """One overhead on one kind of core.

    Attributes:
        value_s: Seconds.
        low_s: Lowest value that the evidence allows.
        high_s: Highest value that the evidence allows.
        basis: "calibrated" or "assumed".
        source: Where it is from.
        note: What to know about it, or "".
    """

    value_s: float
    low_s: float
    high_s: float
    basis: str
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Overheads of one family of releases.

    Attributes:
        name: Of the block.
        first: First release it holds for, as in "2.20".
        last: Last release it holds for.
        overheads: By name and core ("NeuronCore-v2", or "any"): "launch_s" from asking for a kernel to its first instruction, as
            benchmarks on the host see it (0 in profiler totals); "decode_layer_s" of one layer of one decode step beyond the time
            in which weights and cache are read: all small operations, and the collectives of tensor-parallel cores;
            "forward_layer_s" of one layer of a forward pass beyond its latency as one kernel.
        note: Where the block is not of the release that was asked for: which release, and which one this is; else "".
    """

    name: str
    first: str
    last: str
    overheads: Mapping[str, Mapping[str, Overhead]]
    note: str = ""

    @property
    def release(self) -> str:
        """The releases in words."""
        return self.first if self.first == self.last else f"{self.first} to {self.last}"

    @property
    def launch_s(self) -> float:
        """Seconds to launch a kernel, on any core."""
        return self.overheads["launch_s"][ANY_CORE].value_s

    def on(self, core: str) -> dict[str, Overhead]:
        """The overheads that are known for a kind of core, such as `chip.core`."""
        found = {name: entries.get(core, entries.get(ANY_CORE)) for name, entries in self.overheads.items()}
        return {name: overhead for name, overhead in found.items() if overhead is not None}


def load_software(name: str = "neuron") -> Software:
    """A software block, by its name or by a release of the Neuron SDK.

    A release between two blocks, or after the last, gets the block before it, and its `note` says so. One before the first is
    refused: per-layer overheads more than halved within those releases, so no later block says anything about them.

    Args:
        name: "neuron" (releases 2.20 to 2.26), another block, or a release: "2.26", "2.18.1".

    Raises:
        ProgramError: There is no such block, or the release is before the first one or of another major version.

    Units: seconds. Gradient: none. Basis: as the files say.
    """
    blocks = _blocks()
    if not isinstance(name, str):
        kind = type(name).__name__
        raise ProgramError(f"There is no software block {name!r}, a {kind}. Give its name or a release as text: 'neuron', '2.26'.")
    if name in blocks:
        return blocks[name]
    match = _RELEASE.fullmatch(name)
    if match is None:
        raise ProgramError(f"There is no software block {name!r}. {did_you_mean(name, blocks)} Or give a release: {_known(blocks)}.")
    release = int(match[1]), int(match[2])
    before = [block for block in blocks.values() if _number(block.first) <= release]
    if not before or release[0] != _number(before[-1].last)[0]:
        oldest, newest = (next(iter(order)) for order in (blocks.values(), reversed(blocks.values())))
        closest = oldest if release < _number(oldest.first) else newest
        raise ProgramError(
            f"No overheads of Neuron SDK {name} are known, and those of other releases say nothing about it. Known: {_known(blocks)}; "
            f"a release between them or after them gets those before it. The closest is {closest.release}."
        )
    block = before[-1]
    if release <= _number(block.last):
        return block
    return replace(block, note=f"no figures of release {name} are known: these are of {block.release}")


def _known(blocks: Mapping[str, Software]) -> str:
    return ", ".join(block.release for block in blocks.values())


def _number(release: str) -> tuple[int, int]:
    major, minor = release.split(".")
    return int(major), int(minor)


@lru_cache(maxsize=1)
def _blocks() -> dict[str, Software]:
    """All blocks by name, oldest first."""
    files = [file for file in resources.files("trn_jax.software").iterdir() if file.name.endswith(".toml")]
    found = [_block(file.name.removesuffix(".toml"), file.read_text(encoding="utf-8")) for file in files]
    return {block.name: block for block in sorted(found, key=lambda block: _number(block.first))}


def _block(name: str, text: str) -> Software:
    content = tomllib.loads(text)
    overheads = {
        overhead: {
            core: Overhead(
                value_s=float(entry["value"]),
                low_s=float(entry["low"]),
                high_s=float(entry["high"]),
                basis=entry["basis"],
                source=entry["source"],
                note=entry.get("note", ""),
            )
            for core, entry in entries.items()
        }
        for overhead, entries in content["overheads"].items()
    }
    return Software(name=name, first=content["releases"]["first"], last=content["releases"]["last"], overheads=overheads)

"""sweep: the time of programs over a grid of chips, with one compilation, as an xarray.Dataset.

axes -> grid -> chunks of equal size (the last one padded) -> schedules of a batch of chips -> latency_s, utilisation, status
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from trn_jax.chips.fields import RANGES, checked_number
from trn_jax.chips.paths import known_path
from trn_jax.errors import ChipError, ProgramError
from trn_jax.graph.instruction import ENGINES
from trn_jax.report.inputs import Programs, check_one_chip, named_programs
from trn_jax.timing.exact import precision
from trn_jax.timing.limits import LIMITS, slack_bytes
from trn_jax.timing.overlap import default_overlap, overlap_levels
from trn_jax.timing.program import Program
from trn_jax.timing.schedule import schedule
from trn_jax.units import unit_of

if TYPE_CHECKING:
    import xarray

_CHUNK_NUMBERS = 2**21  # rows x chips of one chunk if `chunk` is None: 16 MiB for each column of float64
_OK, _NOT_FINITE = 0, 1
_MEANINGS = ("ok", "time_is_not_finite", *(f"does_not_fit_{name}" for name in LIMITS))


def sweep(
    programs: Programs,
    chip: Any,
    axes: Mapping[str, Sequence[float]],
    *,
    overlap: Any = None,
    chunk: int | None = None,
    dtype: str = "float64",
    progress: bool | Callable[[int, int], None] = False,
) -> xarray.Dataset:
    """Times programs on every chip of a grid.

    Args:
        programs: One program from `trn_jax.trace`, or a list or dict of them. Programs of equal structure share a compilation.
        chip: The chip that the values of the axes are put into; concrete, without a batch shape.
        axes: Dotted path of a chip's leaf to its values, in the order of the dimensions of the result.
        overlap: As for `trn_jax.latency`.
        chunk: Chips timed at once, which bounds memory; None chooses by the length of the program. Does not change the result.
        dtype: "float64", or "float32": faster, about 1e-6 off.
        progress: True for a progress bar, or a function called with (points done, points in all).

    Returns:
        An xarray.Dataset whose dimensions are "program" (for a list or dict) and the axes, with their units:

        latency_s: Seconds; NaN where the point is infeasible.
        utilisation: Busy share of each engine (dimension "engine").
        slack_bytes: Room left in each memory (dimension "memory"), see `timing.limits`; negative where something does not fit.
        status: 0 for ok, otherwise why there is no time (the attribute flag_meanings says it in words).
        feasible: status == 0.

        `attrs["compilations"]` says how many different structures, so compilations, the programs have.

    Raises:
        ChipError: An unknown path, an empty axis, or a value outside what a chip may have, naming it.
        ProgramError: Not a program, an unknown dtype or overlap, a chunk below 1.

    Units: as the names say. Gradient: none; differentiate `trn_jax.latency`. Basis: as `latency`.
    """
    import xarray

    several = isinstance(programs, (Mapping, list, tuple))
    named = named_programs("sweep", programs)
    check_one_chip("sweep", chip, "Give a concrete chip and its values in `axes`, or call trn_jax.latency on the batch.")
    coordinates = {path: _checked_axis(path, values) for path, values in _checked_mapping(axes).items()}
    overlap_levels(overlap)
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise ProgramError(f"chunk = {chunk!r} is not accepted; give a positive int, or None.")
    if dtype not in ("float32", "float64"):
        raise ProgramError(f"dtype = {dtype!r} is not accepted; give 'float64' or 'float32'.")

    shape = tuple(len(values) for values in coordinates.values())
    points = math.prod(shape)
    report = _reporter(progress, points * len(named))
    results = []
    for number, program in enumerate(named.values()):
        size = min(points, chunk or max(1, _CHUNK_NUMBERS // len(program)))
        done = partial(report, number * points)
        levels = tuple(float(level) for level in overlap_levels(default_overlap(overlap, program)))
        results.append(_Grid(program, chip, coordinates, levels, size, dtype).run(done))
    report(len(named) * points, 0)

    dims = (("program",) if several else ()) + tuple(coordinates)
    lead = ((len(named),) if several else ()) + shape
    parts = {name: np.stack([result[name] for result in results]).reshape(*lead, *results[0][name].shape[1:]) for name in results[0]}
    coords = {path: (path, values, {"units": unit_of(path) or "1"}) for path, values in coordinates.items()}
    return xarray.Dataset(
        {
            "latency_s": (dims, parts["latency_s"], {"units": "s", "long_name": "latency"}),
            "utilisation": ((*dims, "engine"), parts["utilisation"], {"units": "1", "long_name": "busy share of the latency"}),
            "slack_bytes": ((*dims, "memory"), parts["slack_bytes"], {"units": "B", "long_name": "room left"}),
            "status": (dims, parts["status"], {"flag_values": list(range(len(_MEANINGS))), "flag_meanings": " ".join(_MEANINGS)}),
            "feasible": (dims, parts["status"] == _OK),
        },
        coords={**({"program": list(named)} if several else {}), **coords, "engine": list(ENGINES), "memory": list(LIMITS)},
        attrs={
            "chip": chip.name,
            "overlap": repr(overlap),
            "dtype": dtype,
            "compilations": len({program.structure for program in named.values()}),
        },
    )


class _Grid:
    """One program over all points, chunk by chunk."""

    def __init__(self, program: Program, chip: Any, axes: dict[str, np.ndarray], levels: tuple[float, ...], size: int, dtype: str):
        self.program, self.chip, self.axes, self.levels, self.size, self.dtype = program, chip, axes, levels, size, dtype
        self.shape = tuple(len(values) for values in axes.values())
        self.points = math.prod(self.shape)

    def run(self, done: Callable[[int], None]) -> dict[str, np.ndarray]:
        """Every result of all points, [points, ...]."""
        results = {
            "latency_s": np.empty(self.points, self.dtype),
            "utilisation": np.empty((self.points, len(ENGINES)), np.float32),
            "slack_bytes": np.empty((self.points, len(LIMITS))),
            "status": np.empty(self.points, np.int8),
        }
        for begin, stop, chips in self.chunks():
            with precision(self.dtype):
                timed = _evaluate(self.program, chips, levels=self.levels, dtype=self.dtype)
            part = slice(begin, stop)
            for name, values in self.judged(chips, *(np.asarray(array) for array in timed)).items():
                results[name][part] = values[: stop - begin]
            done(stop)
        return results

    def chunks(self) -> Iterator[tuple[int, int, Any]]:
        """First point, end, and a batch of `size` chips; the last batch repeats its last point."""
        for begin in range(0, self.points, self.size):
            stop = min(begin + self.size, self.points)
            index = np.unravel_index(np.minimum(np.arange(begin, begin + self.size), stop - 1), self.shape)
            values = {path: axis[position] for (path, axis), position in zip(self.axes.items(), index, strict=True)}
            yield begin, stop, self.chip.replace(values)

    def judged(self, chips: Any, latency_s: np.ndarray, busy_s: np.ndarray) -> dict[str, np.ndarray]:
        """The results of a chunk, without times where something is wrong."""
        slack = slack_bytes(self.program, chips)
        slacks = np.stack([np.broadcast_to(slack[name], latency_s.shape) for name in LIMITS], axis=-1)
        status = np.where(np.isfinite(latency_s), _OK, _NOT_FINITE)
        for number, room in reversed(list(enumerate(slacks.T, start=_NOT_FINITE + 1))):
            status = np.where(room < 0, number, status)
        good = status == _OK
        utilisation = np.divide(busy_s, latency_s, out=np.zeros_like(busy_s), where=good & (latency_s > 0)).T
        return {
            "latency_s": np.where(good, latency_s, np.nan),
            "utilisation": np.where(good[:, None], utilisation, np.nan),
            "slack_bytes": slacks,
            "status": status,
        }


@partial(jax.jit, static_argnames=("levels", "dtype"))
def _evaluate(program: Program, chips: Any, *, levels: tuple[float, ...], dtype: str) -> tuple[Any, Any]:
    """Latency, [chips], and busy time, [engines, chips], in seconds."""
    engines, collectives = levels
    plan = schedule(program, chips, overlap={"engines": engines, "collectives": collectives}, dtype=dtype)
    idle = jnp.zeros_like(plan.total_s)
    return plan.total_s, jnp.stack([plan.busy_s.get(engine, idle) for engine in ENGINES])


def _checked_mapping(axes: Any) -> Mapping[str, Any]:
    if not isinstance(axes, Mapping) or not axes:
        raise ChipError(f"sweep: axes = {axes!r}; give a dict of dotted paths and values, like {{'tensor.rows': [64, 128, 256]}}.")
    return axes


def _checked_axis(path: Any, values: Any) -> np.ndarray:
    """The values of an axis as float64, each inside what a chip may have."""
    known_path("sweep", path)
    if path not in RANGES:
        raise ChipError(f"sweep: {path!r} is no number. Call sweep once per {path}, with chip.replace.")
    listed = np.asarray(values) if not np.isscalar(values) else np.empty(())
    if listed.ndim != 1 or not listed.size:
        raise ChipError(f"sweep: the axis {path} is {values!r}; give a list of numbers, at least one.")
    return np.array([checked_number("sweep", path, value) for value in listed], np.float64)


def _reporter(progress: bool | Callable[[int, int], None], points: int) -> Callable[[int, int], None]:
    """A function of (points before, points since) that shows progress."""
    if callable(progress):
        return lambda before, since: progress(before + since, points)
    if not progress:
        return lambda before, since: None
    from tqdm.auto import tqdm

    bar = tqdm(total=points, desc="sweep", unit="chip", unit_scale=True)

    def show(before: int, since: int) -> None:
        bar.update(before + since - bar.n)
        if bar.n >= points:
            bar.close()

    return show

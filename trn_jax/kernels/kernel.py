"""kernel: a function of tiles as a kernel that runs on arrays and is timed by its own schedule."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, overload

import jax
import numpy as np

from trn_jax.chips import Chip, load_chip
from trn_jax.errors import ProgramError
from trn_jax.kernels.footprint import check_footprint
from trn_jax.kernels.limits import PARTITIONS
from trn_jax.kernels.lower import lower
from trn_jax.kernels.nc import NeuronCore
from trn_jax.kernels.record import Recording
from trn_jax.kernels.recorder import Recorder
from trn_jax.kernels.run import evaluate
from trn_jax.kernels.tile import Buffer, Tile
from trn_jax.timing.program import Program

SMALLEST_SBUF = "trainium1"


class Kernel:
    """What `trn_jax.kernel` makes of a function `f(nc, *arrays, **settings)`.

    Called on arrays it returns values; `trn_jax.trace(kernel, *shapes)` is its Program. Array arguments become tiles in HBM, everything
    else is passed on as it is and may be any hashable Python value (tile sizes, flags).
    """

    def __init__(self, function: Callable[..., Any], buffers: int, chip: str | Chip):
        self.function = function
        self.buffers = buffers
        self.chip = chip
        self.name = getattr(function, "__name__", type(function).__name__)
        self._recordings: dict[Any, tuple[Recording, Callable[..., Any]]] = {}
        functools.update_wrapper(self, function)

    def replace(self, *, buffers: int | None = None, chip: str | Chip | None = None) -> Kernel:
        """The same kernel with another number of buffers for each tile in a loop, or for another chip."""
        buffers = self.buffers if buffers is None else _checked_buffers(buffers)
        return Kernel(self.function, buffers, self.chip if chip is None else chip)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel's results; composes with jit, grad and vmap."""
        arrays = [leaf for leaf in jax.tree.leaves((args, kwargs)) if _is_array(leaf)]
        _, compiled = self._recorded(args, kwargs)
        return compiled(arrays)

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """The instructions in the kernel's own order, for `latency`, `estimate` and the others; only shapes and dtypes are read."""
        recording, _ = self._recorded(args, kwargs)
        return lower(recording)

    def _recorded(self, args: Any, kwargs: Any) -> tuple[Recording, Callable[..., Any]]:
        """The recording for arguments of these shapes, made once, and its compiled evaluation."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        key = (tree, tuple((tuple(leaf.shape), _dtype(leaf)) if _is_array(leaf) else (type(leaf), leaf) for leaf in leaves))
        try:
            known = self._recordings.get(key)
        except TypeError as error:
            raise ProgramError(
                f"{self.name} takes arrays, and settings that are hashable (numbers, strings, tuples), but one of "
                f"{[leaf for leaf in leaves if not _is_array(leaf)]} is not."
            ) from error
        if known is None:
            recording = self._record(leaves, tree)
            known = self._recordings[key] = (recording, jax.jit(functools.partial(evaluate, recording)))
        return known

    def _record(self, leaves: list[Any], tree: Any) -> Recording:
        recorder = Recorder(self.buffers)
        inputs: list[Buffer] = []

        def argument(path: str, leaf: Any) -> Any:
            if not _is_array(leaf):
                return leaf
            shape = tuple(int(size) for size in leaf.shape)
            inputs.append(Buffer(shape=shape, dtype=_dtype(leaf), memory="hbm", name=recorder.name(path), is_input=True))
            return inputs[-1].whole

        names = self._argument_names(tree.unflatten(leaves))
        args, kwargs = tree.unflatten([argument(name, leaf) for name, leaf in zip(names, leaves, strict=True)])
        outputs = self.function(NeuronCore(recorder), *args, **kwargs)
        recorder.finish()
        results = self._checked_results(outputs)
        chip = load_chip(self.chip) if isinstance(self.chip, str) else self.chip
        sbuf, psum = check_footprint(recorder.items, int(float(chip.sbuf.size_bytes) / PARTITIONS), chip.name)
        return Recording(
            name=self.name,
            items=recorder.items,
            inputs=tuple(inputs),
            outputs=outputs,
            results=results,
            sbuf_partition_bytes=sbuf,
            psum_banks=psum,
        )

    def _argument_names(self, arguments: Any) -> list[str]:
        """Names of all leaves: that of the parameter, and where inside it."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        others = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "argument")
        names = []
        for path, _ in jax.tree_util.tree_leaves_with_path(arguments):
            place = getattr(path[1], "idx", getattr(path[1], "key", None))
            if isinstance(place, int):
                name = positional[place] if place < len(positional) else f"{others}[{place - len(positional)}]"
            else:
                name = str(place)
            names.append(name + jax.tree_util.keystr(path[2:]))
        return names

    def _checked_results(self, outputs: Any) -> tuple[Buffer, ...]:
        """Buffers of what the kernel returned, each once."""
        tiles = jax.tree.leaves(outputs, is_leaf=lambda x: isinstance(x, Tile))
        for tile in tiles or [None]:
            if not isinstance(tile, Tile) or tile.memory != "hbm" or tile.buffer.is_input:
                raise ProgramError(
                    f"{self.name} returned {tile}; a kernel returns arrays that it allocated in HBM, with "
                    "nc.ndarray(shape, dtype, buffer='hbm'), and wrote with nc.store."
                )
            if not tile.buffer.storage.written:
                raise ProgramError(f"{self.name} returns {tile}, but never writes to it. Use nc.store.")
        return tuple(dict.fromkeys(tile.buffer.storage for tile in tiles))


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(*, buffers: int = 2, chip: str | Chip = SMALLEST_SBUF) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(function: Callable[..., Any] | None = None, /, *, buffers: int = 2, chip: str | Chip = SMALLEST_SBUF) -> Any:
    """Makes a kernel of a function that issues the instructions of a NeuronCore, tile by tile.

        @trn_jax.kernel
        def double(nc, x):
            out = nc.ndarray(x.shape, x.dtype, buffer="hbm")
            for i in nc.affine_range(x.shape[0] // 128):
                rows = slice(i * 128, (i + 1) * 128)
                nc.store(out[rows, :], nc.tensor_scalar(nc.load(x[rows, :]), "multiply", 2.0))
            return out

    Called on arrays it runs: every instruction by its engine's own arithmetic, so results are those of the plain function within
    the tiles' formats. `trn_jax.trace(double, shapes)` gives a Program whose schedule is the kernel's own: no pass changes it, engines
    and DMA queues work in the order of the calls, and wait only for data and for buffers that are still in use.

    Args:
        function: `f(nc, *arrays, **settings)`; `nc` is a `trn_jax.kernels.NeuronCore`, arrays are tiles in HBM, settings are static.
        buffers: How many copies a tile allocated in a loop has, so that the next iteration need not wait until it is free: 1 turns
            double buffering off, 2 is double buffering.
        chip: Whose SBUF must hold the tiles; the default is the smallest.

    Returns:
        A `Kernel`.

    Raises:
        ShapeError: When called or traced, if a tile does not fit the hardware; has the arithmetic.
        ProgramError: When called or traced, for what a kernel cannot do.

    Gradient: values: that of the same operations in JAX, straight through roundings. Time: as `trn_jax.latency`.
    Basis: see the engines' tables; waits and queues are documented (NKI architecture guide: engines run in order and wait on semaphores).
    """
    buffers = _checked_buffers(buffers)
    if function is None:
        return lambda function: kernel_of(function, buffers, chip)
    return kernel_of(function, buffers, chip)


def kernel_of(function: Callable[..., Any], buffers: int, chip: str | Chip) -> Kernel:
    """The kernel of a function.

    Raises:
        ProgramError: Not a function.
    """
    if not callable(function):
        raise ProgramError(f"kernel takes a function f(nc, ...), but got {function!r}. Use it as a decorator: @trn_jax.kernel.")
    return Kernel(function, buffers, chip)


def _checked_buffers(buffers: Any) -> int:
    if isinstance(buffers, bool) or not isinstance(buffers, int) or buffers < 1:
        raise ProgramError(f"buffers={buffers!r} is not accepted; give how many copies of a tile rotate: 1 (single), 2 (double) or more.")
    return buffers


def _is_array(leaf: Any) -> bool:
    """Whether it is data; numbers of NumPy are settings, as those of Python."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.generic)


def _dtype(leaf: Any) -> np.dtype:
    return np.dtype(jax.dtypes.canonicalize_dtype(leaf.dtype))

"""Passes: each rewrites the Stream so that fewer or cheaper instructions do the same, in a fixed order, switchable by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trn_jax.errors import ProgramError, did_you_mean
from trn_jax.timing.passes.attention import stream_products
from trn_jax.timing.passes.balance import balance_engines
from trn_jax.timing.passes.elementwise import fuse_elementwise
from trn_jax.timing.passes.epilogue import fuse_epilogues
from trn_jax.timing.passes.layout import fold_transposes
from trn_jax.timing.passes.order import order_depth_first
from trn_jax.timing.passes.reductions import fuse_reductions
from trn_jax.timing.passes.row_scalars import use_row_scalars
from trn_jax.timing.passes.row_vectors import use_row_vectors
from trn_jax.timing.stream import Stream

PASSES: dict[str, Callable[[Stream], Stream]] = {
    "layout": fold_transposes,
    "row_scalars": use_row_scalars,
    "row_vectors": use_row_vectors,
    "elementwise": fuse_elementwise,
    "epilogue": fuse_epilogues,
    "reductions": fuse_reductions,
    "attention": stream_products,
    "order": order_depth_first,
    "balance": balance_engines,
}
DEFAULT = tuple(PASSES)


def checked_passes(names: Iterable[str]) -> tuple[str, ...]:
    """The named passes in the order in which they run.

    Raises:
        ProgramError: For an unknown name.
    """
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        if name not in PASSES:
            raise ProgramError(f"There is no pass {name!r} to apply. {did_you_mean(str(name), PASSES)}")
    return tuple(name for name in PASSES if name in names)


def apply_passes(stream: Stream, names: Iterable[str]) -> Stream:
    """The stream after the named passes."""
    for name in checked_passes(names):
        stream = PASSES[name](stream)
    return stream

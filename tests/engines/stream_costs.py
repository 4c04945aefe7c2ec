"""Costs of one record, for the tests of the engines that stream."""

import dataclasses

import jax
import jax.numpy as jnp

from trn_jax import Work, load_chip
from trn_jax.engines import KINDS, Static

CHIP = load_chip("trainium2")
DEFAULTS = {field.name: field.default for field in dataclasses.fields(Work)}


class _Sizes:
    def __init__(self, sizes):
        self.__dict__.update({name: jnp.asarray(value, jnp.float64) for name, value in sizes.items()})


def cost(engine, kind, chip=CHIP, smoothing=0.0, function="", narrow=False, **work):
    """(occupancy, latency, tiles) as Python floats, computed in float64."""
    with jax.enable_x64(True):
        static = Static(narrow=narrow, function=function)
        return tuple(float(x) for x in KINDS[engine][kind].cost(_Sizes(DEFAULTS | work), chip, smoothing, static))


def cycles(engine, kind, columns, **options):
    """Cycles that a record of `columns` full columns occupies its engine."""
    unit = getattr(options.get("chip", CHIP), engine)
    return cost(engine, kind, elements=columns * unit.lanes, **options)[0] * unit.clock_hz

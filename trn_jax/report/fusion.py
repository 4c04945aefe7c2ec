"""What each fusion pass bought: latency without the pass - latency with all of them."""

from __future__ import annotations

from typing import Any

from trn_jax.timing.exact import precision
from trn_jax.timing.latency import latency
from trn_jax.timing.program import Program


def bought_s(program: Program, chip: Any, overlap: Any, latency_s: float) -> dict[str, float]:
    """Seconds by pass, of those that were applied; empty where the program has no function to lower again.

    Passes lean on each other, so the parts need not add up to what all of them together bought.
    """
    origin = program.structure.origin
    applied = () if origin is None else origin.passes
    others = {name: program.with_passes([other for other in applied if other != name]) for name in applied}
    with precision("float64"):
        return {name: float(latency(without, chip, overlap=overlap)) - latency_s for name, without in others.items()}

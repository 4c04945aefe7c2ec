"""What tune makes small: a number for each chip of a batch, from the chip and the latencies of the programs on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trn_jax.errors import ProgramError

LATENCY = "latency_s"


@dataclass(frozen=True, slots=True)
class Objective:
    """Static part of a search; hashable, so that it can be a jit key.

    Attributes:
        function: "latency_s", or a function of (chip, latency_s).
        names: Of the programs.
        levels: Overlap of engines and of collectives.
    """

    function: str | Callable[..., Any]
    names: tuple[Any, ...]
    levels: tuple[float, float]

    def __post_init__(self) -> None:
        if self.function != LATENCY and not callable(self.function):
            raise ProgramError(
                f"tune: objective = {self.function!r} is not accepted; give {LATENCY!r}, or a function of (chip, latency_s) that returns "
                "one number."
            )

    def of(self, chips: Any, latencies_s: Sequence[Any]) -> Any:
        """Objective of each chip, [chips]; every leaf and every latency has that shape."""
        if not callable(self.function):
            return jnp.exp(sum(jnp.log(time_s) for time_s in latencies_s) / len(latencies_s))
        function = self.function

        def of_one(chip: Any, latencies_s: list[Any]) -> Any:
            given = latencies_s[0] if len(latencies_s) == 1 else dict(zip(self.names, latencies_s, strict=True))
            value = jnp.asarray(function(chip, given))
            if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
                raise ProgramError(f"tune: the objective returned {value.dtype}{list(value.shape)}; it has to return one real number.")
            return value

        return jax.vmap(of_one)(chips, list(latencies_s))

    @property
    def overlap(self) -> dict[str, float]:
        """As `trn_jax.latency` takes it."""
        return dict(zip(("engines", "collectives"), self.levels, strict=True))


@partial(jax.jit, static_argnames="goal")
def objectives(goal: Objective, chips: Any, latencies_s: Sequence[Any]) -> Any:
    """Objective of each of a batch of chips, [chips]; leaves without the batch shape get it."""
    shape = jnp.shape(latencies_s[0])
    return goal.of(jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), shape), chips), latencies_s)

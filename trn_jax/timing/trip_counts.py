"""How often while loops run: nothing in a jaxpr says so, the caller does."""

from __future__ import annotations

from collections.abc import Mapping

from trn_jax.errors import ProgramError
from trn_jax.graph.graph import While


class TripCounts:
    """The `trip_count` of a trace: one number for all while loops, or one for each part of a source line or scope.

    Raises:
        ProgramError: For anything but non-negative integers.
    """

    def __init__(self, given: int | Mapping[str, int] | None):
        counts = given.values() if isinstance(given, Mapping) else () if given is None else (given,)
        for count in counts:
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ProgramError(
                    f"trip_count={given!r} is not accepted; give a non-negative int, or a dict of them by source line or scope."
                )
        self.given = given
        self.used: set[str] = set()

    def of(self, node: While) -> int:
        """Iterations of one loop.

        Raises:
            ProgramError: If none was given for it; says where it is and what to pass.
        """
        if isinstance(self.given, Mapping):
            keys = [key for key in self.given if key in node.source or (node.scope and key in node.scope)]
            self.used.update(keys)
            if keys:
                return self.given[keys[0]]
        elif self.given is not None:
            return self.given
        raise ProgramError(
            f"The while loop at {node.source}{f' in {node.scope}' if node.scope else ''} runs an unknown number of times. Say how often: "
            "trn_jax.trace(..., trip_count=N) for all while loops, or trip_count={'part of the source line or scope': N} for each. "
            "(jax.lax.scan, and fori_loop with Python bounds, need none.)"
        )

    def check_all_used(self) -> None:
        """Raises ProgramError if a count was given for a loop that does not exist."""
        unused = [key for key in self.given if key not in self.used] if isinstance(self.given, Mapping) else []
        if unused:
            raise ProgramError(f"trip_count names {unused[0]!r}, but no while loop has that in its source line or scope.")

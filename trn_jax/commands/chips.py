"""`trn-jax chips`: the chips that come with trn_jax, or every number of one chip with its source."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import tyro


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chips:
    """List the chips, or print every value of one with its unit, basis and source."""

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A chip that comes with trn_jax, or a TOML file."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print JSON."""

    def run(self) -> None:
        """Prints the table."""
        from trn_jax.chips import table

        if self.json:
            print(json.dumps(table.list_json() if self.name is None else table.chip_json(self.name)))
        else:
            print(table.list_text() if self.name is None else table.chip_text(self.name))

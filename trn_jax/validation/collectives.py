"""Collective rows: the closed form of `trn_jax.network` for ranks of one server."""

from __future__ import annotations

from trn_jax.chips import load_chip
from trn_jax.network.collective_time import PHASES, bytes_per_rank, collective_time
from trn_jax.units import GB, GIB
from trn_jax.validation.figure import SECONDS
from trn_jax.validation.measurement import Measurement
from trn_jax.validation.sizes import Missing, number_of, sizes_of

ONE_RING_SHARE = 0.5  # of the links: 8 or 16 ranks of trn1.32xlarge find one ring through the torus, 32 find two (see collective_time)
ALL_RANKS = 32
CORES_OF_A_CHIP = 2
CALIBRATED = "8, 16 and 32 ranks of trn1.32xlarge, and of two cores of one chip,"
ALIASES = {"sendrecv": "permute"}  # of published tables


def collective_s(row: Measurement) -> tuple[float, str, float]:
    """Seconds of a collective, its group, and the published figure in seconds.

    Raises:
        Missing: What the closed form does not know.
    """
    kind, sizes = ALIASES.get(row.text("collective"), row.text("collective")), sizes_of(row)
    if not row.preset:
        raise Missing(f"a model of the chip {row.chip!r}")
    if kind not in PHASES:
        raise Missing(f"a closed form of the collective {kind!r}")
    if sizes.get("n_nodes", 1) > 1:
        raise Missing("a model of EFA between servers")
    size_bytes, ranks = sizes["bytes"], sizes["ranks"]
    chip = load_chip(row.preset)
    on_one_chip = ranks == CORES_OF_A_CHIP == chip.cores and number_of(row, "n_devices") == 1
    if not on_one_chip and (row.preset != "trainium1" or ranks <= CORES_OF_A_CHIP):
        raise Missing(f"calibrated links of {ranks} ranks on {row.chip}: only those of {CALIBRATED} are")
    if row.unit in SECONDS:
        published_s = row.value * SECONDS[row.unit]
    elif row.unit in ("GB/s", "GiB/s"):
        published_s = bytes_per_rank(kind, size_bytes, ranks) / (row.value * (GB if row.unit == "GB/s" else GIB))
    else:
        raise Missing(f"a meaning of the unit {row.unit!r} for a collective")
    share = 1.0 if ranks == ALL_RANKS else ONE_RING_SHARE
    seconds = collective_time(kind, size_bytes, ranks, chip, "cores" if on_one_chip else "fastest", link_share=share)
    return float(seconds), f"{kind} {ranks} ranks", published_s

"""How long a collective takes, in closed form: steps times latency plus bytes over bandwidth.

With n ranks and `size_bytes` S, f steps' worth of (n-1)/n S (2 for all-reduce, 1 for each of its halves):

    ring   T = f (n-1) latency + f (n-1)/n S / bandwidth
    mesh   T = (0.12 + 0.72 log2 n) latency + f (n-1)/n S / (0.26 bandwidth)      everyone to everyone, over shared links
    cores  T = (0.12 + 0.72 log2 n) latency + f (n-1)/n S / (0.21 DMA rate)       cores of one chip, through its HBM

`size_bytes` is always the larger of what one rank puts in and gets out:

    all_reduce       the array, in = out         sent per rank  2 (n-1)/n S
    all_gather       the gathered output                          (n-1)/n S
    reduce_scatter   the full input                               (n-1)/n S
    all_to_all       what one rank holds, in = out                (n-1)/n S
    permute          the message                                          S
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import jax.numpy as jnp

from trn_jax.errors import NetworkError, did_you_mean
from trn_jax.timing.smoothing import is_hard, smooth_min, width

# Shares of the bytes (n-1)/n S that a rank sends; 0 stands for a single message of S.
PHASES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "permute": 0}
ALGORITHMS = ("ring", "mesh", "cores", "fastest")

# Mesh all-reduce of trn1.32xlarge as multiples of its ring step (2.48 us) and of what its rings carry (136.8 GB/s), so that it
# scales with the chip's link: 0.30 us + 1.79 us log2(n) + f S / 36.2 GB/s. Basis: calibrated on published all-reduce times of
# 2 to 32 ranks (6 % held out); assumed, not calibrated, for any other chip.
MESH_START_STEPS = 0.30 / 2.48
MESH_STEPS_PER_DOUBLING = 1.79 / 2.48
MESH_BANDWIDTH_SHARE = 36.2 / 136.8

# Two cores of one Trainium1 chip: 2.1 us + f S / 57.2 GB/s. No NeuronLink is on the way: data go through the DMA engines and HBM, so
# it is a share of what one core's DMA reaches (272 GB/s); the start is the mesh's of two ranks. Basis: calibrated on published
# all-reduce times of 2 ranks, 2 KiB to 2 GiB; two cores of Inferentia2 show 56 to 64 GB/s at 1 to 8 MiB. Assumed for anything but
# all-reduce, for more cores, and for other chips.
CORES_DMA_SHARE = 57.2 / 272


def bytes_per_rank(kind: str, size_bytes: Any, ranks: Any) -> Any:
    """Bytes each rank sends in a collective, by any algorithm that sends nothing twice.

    Args:
        kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or "permute".
        size_bytes: Size as defined at the top of this module, in bytes.
        ranks: Number of ranks.

    Returns:
        Bytes, of the type arithmetic on the arguments gives (a float for Python numbers).

    Raises:
        NetworkError: Unknown kind, negative size, fewer than one rank.

    Gradient: exact in every numeric argument. Basis: derived.
    """
    phases = _phases(kind)
    _check(size_bytes, ranks)
    if phases == 0:
        return size_bytes * 1.0
    return phases * (ranks - 1) * size_bytes / ranks


def ring_bytes_per_rank(size_bytes: Any, ranks: Any) -> Any:
    """Bytes each rank sends in a ring all-reduce of `size_bytes`: 2 (n-1)/n S; see `bytes_per_rank`."""
    return bytes_per_rank("all_reduce", size_bytes, ranks)


def ring_time(size_bytes: Any, ranks: Any, latency_s: Any, bandwidth_bytes_per_s: Any, phases: int = 2, *, two_way: bool = False) -> Any:
    """Seconds once (or twice) around a ring: phases (n-1) latency + phases (n-1)/n S / bandwidth.

    Args:
        size_bytes: The whole array, in bytes.
        ranks: Ranks of the ring.
        latency_s: One step: from a chunk being ready on one rank to being usable on the next, beyond its transfer.
        bandwidth_bytes_per_s: What one rank sends to its neighbour, one way round.
        phases: 2 for all-reduce, 1 for all-gather and for reduce-scatter.
        two_way: Half of the data goes around the other way at the same time: half the transfer time, the same steps.

    Returns:
        Seconds. Python numbers in, a Python float out; arrays, tracers and batches broadcast.

    Raises:
        NetworkError: Negative size or fewer than one rank (where they are concrete).

    Gradient: exact in every numeric argument; linear in size and latency. Basis: derived.
    """
    _check(size_bytes, ranks)
    sent_bytes = phases * (ranks - 1) * size_bytes / ranks
    return phases * (ranks - 1) * latency_s + sent_bytes / (bandwidth_bytes_per_s * (2 if two_way else 1))


def collective_time(
    kind: str,
    size_bytes: Any,
    ranks: Any,
    chip: Any,
    algorithm: str | None = None,
    *,
    two_way: bool = False,
    link_share: Any = 1.0,
    mean_hops: Any = 1.0,
    smoothing: Any = 0.0,
) -> Any:
    """Seconds that a collective takes on a chip's links, alone.

    Uses `chip.link`: bandwidth times rate is what one chip sends over all its links at once, latency is one step. Ranks are
    taken as neighbours in one ring, unless they are said to be the cores of one chip; links between servers are not told apart.

    Args:
        kind: "all_reduce", "all_gather", "reduce_scatter", "all_to_all" or "permute".
        size_bytes: Size as defined at the top of this module, in bytes.
        ranks: Number of ranks, at least 1 (1 takes no time).
        chip: A Chip; its leaves may be tracers or batches.
        algorithm: "ring"; "mesh" (all-reduce only); "fastest" of both, as a runtime chooses; "cores" of one chip, which have no
            link between them. None is "ring", which needs nothing but neighbours: a chip alone does not say what else it is connected to.
        two_way: Doubles the bandwidth, for a link whose figure counts one way round only. The presets count every link that
            a chip sends on, so with them leave it off.
        link_share: Share of those links the group's rings can use: 1 for a whole torus (two rings without a common link, as 32
            ranks of trn1.32xlarge), 0.5 for one such ring (8 or 16 ranks of it).
        mean_hops: For all_to_all and permute: links that a message crosses on average, each of them busy with it. 1 where
            ranks are switched or neighbours; n/2 on a one-way ring; 32/15 on a 4 x 4 torus.
        smoothing: For "fastest": rounds off the choice; 0 is exact.

    Returns:
        Seconds: a Python float if everything is, else a JAX array.

    Raises:
        NetworkError: Unknown kind or algorithm, a mesh of something other than all-reduce, negative size, fewer than one rank,
            more ranks than a chip has cores.

    Gradient: exact in the chip's link leaves (for "cores", its DMA's and the link's latency) and the numeric arguments; smooth in
        size (for "fastest" with smoothing).
    Basis: ring and exchange derived; mesh and cores calibrated on Trainium1, assumed elsewhere. Against published all-reduce times of
        trn1.32xlarge see the decision record on the ring.
    """
    phases = _phases(kind)
    algorithm = "ring" if algorithm is None else algorithm
    if algorithm not in ALGORITHMS:
        raise NetworkError(f"No algorithm is called {algorithm!r}. {did_you_mean(str(algorithm), ALGORITHMS)}")
    if algorithm == "mesh" and kind != "all_reduce":
        raise NetworkError(f"The mesh algorithm is known for all_reduce only, not for {kind}. Give algorithm='ring' or None.")
    _check(size_bytes, ranks)
    if not hasattr(chip, "link"):
        raise NetworkError(f"collective_time takes a Chip, but got {chip!r}. Load one: trn_jax.load_chip('trainium1').")
    latency_s, bandwidth_bytes_per_s = chip.link.latency_s, chip.link.bandwidth_bytes_per_s * chip.link.rate * link_share
    if isinstance(ranks, Real) and ranks == 1:
        return 0.0 * latency_s
    if algorithm == "cores":
        return _cores_time(kind, size_bytes, ranks, chip)
    if kind in ("all_to_all", "permute"):
        steps = ranks - 1 if kind == "all_to_all" else 1
        link_bytes = bytes_per_rank(kind, size_bytes, ranks) * mean_hops
        return steps * latency_s + link_bytes / (bandwidth_bytes_per_s * (2 if two_way else 1))
    ring_s = ring_time(size_bytes, ranks, latency_s, bandwidth_bytes_per_s, phases, two_way=two_way)
    if algorithm == "ring" or kind != "all_reduce":
        return ring_s
    mesh_bandwidth_bytes_per_s = MESH_BANDWIDTH_SHARE * chip.link.bandwidth_bytes_per_s * chip.link.rate
    mesh_s = _mesh_steps(ranks) * latency_s + ring_bytes_per_rank(size_bytes, ranks) / mesh_bandwidth_bytes_per_s
    if algorithm == "mesh":
        return mesh_s
    if is_hard(smoothing) and isinstance(ring_s, Real) and isinstance(mesh_s, Real):
        return min(ring_s, mesh_s)
    return smooth_min(ring_s, mesh_s, width(smoothing, ring_s * mesh_s / (ring_s + mesh_s)))


def _mesh_steps(ranks: Any) -> Any:
    """Ring steps after which a mesh has started."""
    return MESH_START_STEPS + MESH_STEPS_PER_DOUBLING * (math.log2(ranks) if isinstance(ranks, Real) else jnp.log2(ranks))


def _cores_time(kind: str, size_bytes: Any, ranks: Any, chip: Any) -> Any:
    """Cores of one chip, through its HBM."""
    if isinstance(ranks, Real) and isinstance(chip.cores, Real) and ranks > chip.cores:
        raise NetworkError(
            f"{ranks} ranks are no cores of one {chip.name}, which has {chip.cores:g}. Give at most that many, or algorithm='ring'."
        )
    bandwidth_bytes_per_s = CORES_DMA_SHARE * chip.dma.bandwidth_bytes_per_s * chip.dma.rate
    return _mesh_steps(ranks) * chip.link.latency_s + bytes_per_rank(kind, size_bytes, ranks) / bandwidth_bytes_per_s


def _phases(kind: str) -> int:
    if kind not in PHASES:
        raise NetworkError(f"No collective is called {kind!r}. {did_you_mean(str(kind), PHASES)}")
    return PHASES[kind]


def _check(size_bytes: Any, ranks: Any) -> None:
    """Refuses impossible sizes where they are concrete Python numbers."""
    if isinstance(ranks, Real) and ranks < 1:
        raise NetworkError(f"A collective needs at least 1 rank, got {ranks}.")
    if isinstance(size_bytes, Real) and size_bytes < 0:
        raise NetworkError(f"A size in bytes cannot be negative, got {size_bytes}.")

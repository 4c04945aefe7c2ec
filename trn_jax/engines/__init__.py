"""Engines: for each a table of its instruction kinds, what each computes and what each costs. They know no jaxpr."""

from trn_jax.engines import collective, dma, gpsimd, scalar, tensor, vector
from trn_jax.engines.kind import Cost, Kind, Static

KINDS: dict[str, dict[str, Kind]] = {
    "tensor": tensor.KINDS,
    "vector": vector.KINDS,
    "scalar": scalar.KINDS,
    "gpsimd": gpsimd.KINDS,
    "dma": dma.KINDS,
    "collective": collective.KINDS,
}

__all__ = ["KINDS", "Cost", "Kind", "Static", "collective", "dma", "gpsimd", "scalar", "tensor", "vector"]

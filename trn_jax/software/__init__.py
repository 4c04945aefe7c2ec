"""Software blocks: overheads of runtime and compiler, with their release and source; they never enter a chip."""

from trn_jax.software.loader import Overhead, Software, load_software

__all__ = ["Overhead", "Software", "load_software"]

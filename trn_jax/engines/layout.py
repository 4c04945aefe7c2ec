"""Layouts: how dot_general and convolutions become matrices, which the Tensor Engine multiplies and the timing side counts."""

from trn_jax.engines.contraction import MATRICES, Layout, OneAxis, Sizes
from trn_jax.engines.conv_layout import ConvLayout
from trn_jax.engines.dot_layout import DotLayout

__all__ = ["MATRICES", "ConvLayout", "DotLayout", "Layout", "OneAxis", "Sizes"]

"""A convolution as a matmul: each output position's window of the input becomes a row (im2col), groups become the batch.

K = (window positions, input channels of a group), the channels fastest
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Shaped

from trn_jax.engines.contraction import MATRICES, OneAxis, Shape, Sizes


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvLayout:
    """lax.conv_general_dilated with these parameters, named as there; `dimension_numbers` are its specs of axes.

    The im2col matrix is made in full when values are computed: as many times the input as the window has positions.

    Basis: assumed (window positions outside, channels inside, so that a tile of K is channels of few positions as NKI's convolution
        kernels have it; no order is documented).
    """

    window_strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    dimension_numbers: lax.ConvDimensionNumbers
    feature_group_count: int = 1
    batch_group_count: int = 1

    def __post_init__(self):
        for name in ("window_strides", "lhs_dilation", "rhs_dilation"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "padding", tuple(tuple(pair) for pair in self.padding))
        object.__setattr__(self, "dimension_numbers", lax.ConvDimensionNumbers(*(tuple(spec) for spec in self.dimension_numbers)))

    @classmethod
    def from_params(cls, params: Mapping[str, Any]) -> ConvLayout:
        """The layout of a conv_general_dilated with these jaxpr parameters."""
        return cls(**{field.name: params[field.name] for field in fields(cls)})

    @property
    def walked(self) -> tuple[None, None]:
        """All axes: windows overlap."""
        return None, None

    @property
    def groups(self) -> int:
        """Independent products; JAX allows only one of the two counts to exceed 1."""
        return self.feature_group_count * self.batch_group_count

    def _shapes(self, lhs_shape: Shape, rhs_shape: Shape) -> tuple[list[int], list[int], list[int]]:
        """[images, channels, *space], [features, channels of a group, *window], and the output's space."""
        lhs_spec, rhs_spec, _ = self.dimension_numbers
        lhs_NCS, rhs_OIW = [lhs_shape[axis] for axis in lhs_spec], [rhs_shape[axis] for axis in rhs_spec]
        space = []
        for i, (size, window) in enumerate(zip(lhs_NCS[2:], rhs_OIW[2:], strict=True)):
            padded = _dilated(size, self.lhs_dilation[i]) + sum(self.padding[i])
            space.append(max(0, (padded - _dilated(window, self.rhs_dilation[i])) // self.window_strides[i] + 1))
        return lhs_NCS, rhs_OIW, space

    def sizes(self, lhs_shape: Shape, rhs_shape: Shape) -> Sizes:
        """Groups as batch, output positions as M, one window as K, output features of a group as N."""
        lhs_NCS, rhs_OIW, space = self._shapes(lhs_shape, rhs_shape)
        return Sizes(
            batch=self.groups,
            m=lhs_NCS[0] // self.batch_group_count * math.prod(space),
            k=math.prod(rhs_OIW[1:]),
            n=rhs_OIW[0] // self.groups,
        )

    def dense_rows_and_depth(self, lhs_shape: Shape, rhs_shape: Shape) -> tuple[float, float]:
        """M and K without the multiplications by zeros that `lhs_dilation` inserts, as in the gradient of a strided convolution.

        Output positions a whole number of dilations apart meet the same positions of the window, the others see zeros there. So a
        schedule makes one dense product for each such phase. Here they are one product as deep as the deepest of them, with as
        many rows as give the multiplications of all of them together: not always whole ones.

        Basis: derived (exact in multiplications; in tiles of K too, while the channels of a group fill the array's rows or all phases
        are equally deep).
        """
        lhs_NCS, rhs_OIW, space = self._shapes(lhs_shape, rhs_shape)
        m, k = float(lhs_NCS[0] // self.batch_group_count), float(rhs_OIW[1])
        for i, (out, window) in enumerate(zip(space, rhs_OIW[2:], strict=True)):
            step = self.lhs_dilation[i]
            first = (np.arange(out) * self.window_strides[i] - self.padding[i][0]) % step
            taps = np.bincount((np.arange(window) * self.rhs_dilation[i]) % step, minlength=step)  # by the phase they meet
            met = taps[-first % step]
            deepest = max(1, int(met.max(initial=0)))
            m, k = m * float(met.sum()) / deepest, k * deepest
        return m, k

    def split(self, lhs: Array, rhs: Array) -> tuple[Shaped[Array, "B M K"], Shaped[Array, "B K N"]]:
        """The windows as rows of lhs, the kernels as columns of rhs."""
        lhs_spec, rhs_spec, _ = self.dimension_numbers
        batch, m, k, n = self.sizes(lhs.shape, rhs.shape)
        dims = len(self.window_strides)
        window = [rhs.shape[axis] for axis in rhs_spec[2:]]

        edges = [(0, 0, 0)] * 2 + [(*pair, step - 1) for pair, step in zip(self.padding, self.lhs_dilation, strict=True)]
        x = lax.pad(lax.transpose(lhs, lhs_spec), jnp.zeros((), lhs.dtype), edges)
        for i, out in enumerate(self._shapes(lhs.shape, rhs.shape)[2]):
            # Axis 2 + 2i is this dimension of space; it becomes two axes: output position and position in the window.
            x = _windows(x, 2 + 2 * i, out, window[i], self.window_strides[i], self.rhs_dilation[i])

        images, channels = x.shape[0] // self.batch_group_count, x.shape[1] // self.feature_group_count
        outs, positions = [4 + 2 * i for i in range(dims)], [5 + 2 * i for i in range(dims)]
        x = x.reshape(self.batch_group_count, images, self.feature_group_count, channels, *x.shape[2:])
        lhs_BMK = lax.transpose(x, (0, 2, 1, *outs, *positions, 3)).reshape(batch, m, k)

        kernels = lax.transpose(rhs, rhs_spec).reshape(batch, n, channels, *window)
        rhs_BKN = lax.transpose(kernels, (0, *range(3, 3 + dims), 2, 1)).reshape(batch, k, n)
        return lhs_BMK, rhs_BKN

    def join(self, out_BMN: Shaped[Array, "B M N"], lhs_shape: Shape, rhs_shape: Shape) -> Array:
        """The product with images, features and space where the convolution's output has them."""
        lhs_NCS, rhs_OIW, space = self._shapes(lhs_shape, rhs_shape)
        images = lhs_NCS[0] // self.batch_group_count
        out = out_BMN.reshape(self.groups, images, *space, rhs_OIW[0] // self.groups)
        last = out.ndim - 1
        out = lax.transpose(out, (1, 0, last, *range(2, last))).reshape(images, rhs_OIW[0], *space)
        return lax.transpose(out, np.argsort(self.dimension_numbers.out_spec))

    def one_axis(self, lhs: Array, rhs: Array) -> OneAxis:
        """The matrices of `split`."""
        return OneAxis(*self.split(lhs, rhs), 2, 1, MATRICES)

    def finish(self, out: Array, lhs_shape: Shape, rhs_shape: Shape) -> Array:
        """`join`, as the sum is over slices of matrices."""
        return self.join(out, lhs_shape, rhs_shape)


def _dilated(size: int, step: int) -> int:
    """Extent of `size` elements `step` apart."""
    return 0 if size == 0 else (size - 1) * step + 1


def _windows(x: Array, axis: int, out: int, window: int, stride: int, dilation: int) -> Array:
    """Splits `axis` into [out, window]: element (o, w) is the one at o stride + w dilation."""
    index = np.add.outer(np.arange(out) * stride, np.arange(window) * dilation)
    taken = jnp.take(x, index.reshape(-1), axis=axis, mode="clip") if index.size else jnp.zeros_like(x, shape=_resize(x, axis, 0))
    return taken.reshape(*x.shape[:axis], out, window, *x.shape[axis + 1 :])


def _resize(x: Array, axis: int, size: int) -> Sequence[int]:
    return (*x.shape[:axis], size, *x.shape[axis + 1 :])

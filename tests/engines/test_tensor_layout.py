"""Layouts turn any dot_general and any convolution into [B, M, K] times [B, K, N], and give the output its axes back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from product_bounds import whole_numbers

from trn_jax.engines.accumulate import tiled
from trn_jax.engines.layout import ConvLayout, DotLayout

# lhs shape, rhs shape, ((contracted), (batch)), (batch, m, k, n)
DOTS = {
    "matrix": ((5, 7), (7, 3), (((1,), (0,)), ((), ())), (1, 5, 7, 3)),
    "matrix_vector": ((5, 7), (7,), (((1,), (0,)), ((), ())), (1, 5, 7, 1)),
    "vector_matrix": ((7,), (7, 3), (((0,), (0,)), ((), ())), (1, 1, 7, 3)),
    "inner": ((9,), (9,), (((0,), (0,)), ((), ())), (1, 1, 9, 1)),
    "outer": ((2, 3), (4,), (((), ()), ((), ())), (1, 6, 1, 4)),
    "scalars": ((), (), (((), ()), ((), ())), (1, 1, 1, 1)),
    "batched": ((2, 5, 7), (2, 7, 3), (((2,), (1,)), ((0,), (0,))), (2, 5, 7, 3)),
    "only_batch": ((4,), (4,), (((), ()), ((0,), (0,))), (4, 1, 1, 1)),
    "weight_gradient": ((2, 6, 3), (2, 6, 4), (((0, 1), (0, 1)), ((), ())), (1, 3, 12, 4)),
    "attention": ((2, 6, 3, 4), (2, 5, 3, 4), (((3,), (3,)), ((0, 2), (0, 2))), (6, 6, 4, 5)),
    "contracted_in_another_order": ((3, 4, 5), (5, 2, 3), (((2, 0), (0, 2)), ((), ())), (1, 4, 15, 2)),
    "contracted_apart": ((3, 4, 5, 2), (3, 2, 5), (((0, 2), (0, 2)), ((3,), (1,))), (2, 4, 15, 1)),
    "empty_contraction": ((3, 0), (0, 4), (((1,), (0,)), ((), ())), (1, 3, 0, 4)),
    "empty_rows": ((0, 9), (9, 4), (((1,), (0,)), ((), ())), (1, 0, 9, 4)),
}

# lhs shape, rhs shape, parameters of conv_general_dilated, (batch, m, k, n)
NHWC = dict(dimension_numbers=("NHWC", "HWIO", "NHWC"))
CONVS = {
    "same": ((2, 3, 5, 4), (6, 3, 3, 2), dict(window_strides=(1, 1), padding="SAME"), (1, 40, 18, 6)),
    "strided_and_cropped": ((2, 9, 6, 3), (3, 2, 3, 5), dict(window_strides=(2, 1), padding=((1, 2), (0, -1)), **NHWC), (1, 40, 18, 5)),
    "dilated": (
        (1, 4, 7, 2),
        (2, 3, 2, 3),
        dict(window_strides=(1, 2), padding=((1, 1), (0, 2)), lhs_dilation=(2, 1), rhs_dilation=(2, 2), **NHWC),
        None,
    ),
    "feature_groups": (
        (1, 5, 5, 4),
        (3, 3, 2, 6),
        dict(window_strides=(1, 1), padding="SAME", feature_group_count=2, **NHWC),
        (2, 25, 18, 3),
    ),
    "depthwise": ((1, 6, 6, 8), (3, 3, 1, 8), dict(window_strides=(1, 1), padding="SAME", feature_group_count=8, **NHWC), (8, 36, 9, 1)),
    "batch_groups": (
        (4, 3, 9),
        (6, 3, 2),
        dict(window_strides=(1,), padding="VALID", batch_group_count=2, dimension_numbers=("NCH", "OIH", "HNC")),
        (2, 16, 6, 3),
    ),
    "no_space": ((2, 3), (4, 3), dict(window_strides=(), padding=()), (1, 2, 3, 4)),
    "window_larger_than_image": ((2, 3, 3), (4, 3, 5), dict(window_strides=(1,), padding="VALID"), (1, 0, 15, 4)),
}


# size, window, parameters of one dimension: (rows, depth) without inserted zeros, for one channel
DILATED = {
    "none": (8, 3, dict(padding=(1, 1)), (8, 3)),
    "one_tap": (4, 1, dict(padding=(0, 1), lhs_dilation=2), (4, 1)),  # 8 positions, every other one sees a zero
    "two_taps": (4, 2, dict(padding=(1, 1), lhs_dilation=2), (8, 1)),
    "three_taps": (4, 3, dict(padding=(1, 2), lhs_dilation=2), (6, 2)),  # 4 positions see 1, 4 see 2
    "step_of_three": (5, 7, dict(padding=(2, 3), lhs_dilation=3), (28 / 3, 3)),  # 12 positions see 3, 2, 2 in turn
    "stride_and_dilation_cancel": (4, 4, dict(padding=(0, 1), window_strides=2, lhs_dilation=2), (3, 2)),
    "window_steps_over_zeros": (4, 2, dict(padding=(0, 0), lhs_dilation=2, rhs_dilation=2), (3, 2)),
    "nothing_but_zeros": (4, 1, dict(padding=(-1, 0), window_strides=2, lhs_dilation=2), (0, 1)),
}


@pytest.mark.parametrize("case", DILATED)
def test_zeros_that_a_dilation_inserts_are_no_work(case):
    size, window, params, expected = DILATED[case]
    params = {"window_strides": 1, "lhs_dilation": 1, "rhs_dilation": 1} | params
    layout = ConvLayout(
        **{name: (value,) for name, value in params.items()}, dimension_numbers=lax.ConvDimensionNumbers((0, 1, 2), (0, 1, 2), (0, 1, 2))
    )
    shapes = (5, 64, size), (32, 64, window)
    m, k = layout.dense_rows_and_depth(*shapes)
    assert (m, k) == pytest.approx((5 * expected[0], 64 * expected[1]))
    low, step = params["padding"][0], params["lhs_dilation"]
    outs = layout.sizes(*shapes).m // 5
    positions = [o * params["window_strides"] - low + w * params["rhs_dilation"] for o in range(outs) for w in range(window)]
    assert m * k == pytest.approx(5 * 64 * sum(position % step == 0 for position in positions))


@pytest.mark.parametrize("case", DOTS)
def test_dot_layout_computes_dot_general(case):
    lhs_shape, rhs_shape, numbers, sizes = DOTS[case]
    lhs, rhs = whole_numbers(0, lhs_shape), whole_numbers(1, rhs_shape)
    layout = DotLayout(numbers)
    expected = lax.dot_general(lhs, rhs, numbers)

    assert layout.sizes(lhs_shape, rhs_shape) == sizes
    lhs_BMK, rhs_BKN = layout.split(jnp.asarray(lhs), jnp.asarray(rhs))
    np.testing.assert_array_equal(layout.join(lhs_BMK @ rhs_BKN, lhs_shape, rhs_shape), expected)
    for rows in {2, max(1, -(-sizes[2] // 2))}:  # several tiles, often with a tail; and two tiles
        np.testing.assert_array_equal(tiled(jnp.asarray(lhs), jnp.asarray(rhs), layout, rows), expected)


@pytest.mark.parametrize("case", CONVS)
def test_conv_layout_computes_conv_general_dilated(case):
    lhs_shape, rhs_shape, params, sizes = CONVS[case]
    lhs, rhs = jnp.asarray(whole_numbers(0, lhs_shape)), jnp.asarray(whole_numbers(1, rhs_shape))
    convolution = lambda lhs, rhs: lax.conv_general_dilated(lhs, rhs, **params)
    layout = ConvLayout.from_params(jax.make_jaxpr(convolution)(lhs, rhs).jaxpr.eqns[0].params)
    expected = convolution(lhs, rhs)

    batch, m, k, n = layout.sizes(lhs_shape, rhs_shape)
    assert sizes in (None, (batch, m, k, n))
    lhs_BMK, rhs_BKN = layout.split(lhs, rhs)
    assert lhs_BMK.shape == (batch, m, k)
    assert rhs_BKN.shape == (batch, k, n)
    np.testing.assert_array_equal(layout.join(lhs_BMK @ rhs_BKN, lhs_shape, rhs_shape), expected)
    np.testing.assert_array_equal(tiled(lhs, rhs, layout, 4), expected)


def test_a_depthwise_convolution_has_nine_rows_per_group():
    layout = ConvLayout(
        window_strides=(1, 1),
        padding=((1, 1), (1, 1)),
        lhs_dilation=(1, 1),
        rhs_dilation=(1, 1),
        dimension_numbers=lax.conv_dimension_numbers((1, 112, 112, 32), (3, 3, 1, 32), NHWC["dimension_numbers"]),
        feature_group_count=32,
    )
    batch, m, k, n = layout.sizes((1, 112, 112, 32), (3, 3, 1, 32))
    assert batch * m * k * n == 3_612_672
    assert k == 9


def test_layouts_of_equal_parameters_are_equal_keys():
    from_lists = DotLayout((([1], [0]), ([], [])))
    from_tuples = DotLayout((((1,), (0,)), ((), ())))
    assert {from_lists: "found"}[from_tuples] == "found"


def test_window_positions_are_outside_channels_along_k():
    """K order decides which products share a tile: here a tile of 2 is the 2 channels of one window position."""
    layout = ConvLayout(
        window_strides=(1,),
        padding=((0, 0),),
        lhs_dilation=(1,),
        rhs_dilation=(1,),
        dimension_numbers=lax.ConvDimensionNumbers((0, 1, 2), (0, 1, 2), (0, 1, 2)),
    )
    x_NCS = jnp.asarray([[[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]]])
    lhs_BMK, _ = layout.split(x_NCS, jnp.zeros((1, 2, 2)))
    np.testing.assert_array_equal(lhs_BMK[0], [[1, 10, 2, 20], [2, 20, 3, 30]])

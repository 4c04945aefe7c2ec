"""The chip as a pytree: changed by path, differentiated, batched, and never a reason to trace twice."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trn_jax.chips import leaf_paths, leaves_by_path, load_chip, time_power
from trn_jax.errors import ChipError

CHIP = load_chip("trainium2")


def seconds(chip):
    return 1e6 / (chip.tensor.rows * chip.tensor.clock_hz) + chip.dma.latency_s


def test_replace_changes_only_what_it_names():
    new = CHIP.replace({"tensor.rows": 256, "tensor.cols": np.float32(64), "hbm.bandwidth_bytes_per_s": 4e12, "cores": np.int64(4)})
    changed = {path for path in leaf_paths() if new.get(path) != CHIP.get(path)}
    assert changed == {"tensor.rows", "tensor.cols", "hbm.bandwidth_bytes_per_s", "cores"}
    assert (new.tensor.rows, new.tensor.cols, new.cores) == (256.0, 64.0, 4.0)
    assert all(type(leaf) is float for leaf in jax.tree.leaves(new))
    assert CHIP.tensor.rows == 128.0
    assert new.name == "trainium2"


def test_replace_takes_statics():
    new = CHIP.replace({"name": "mine", "rounds": False, "formats": ["fp32", "bf16"], "core": "mine-v1"})
    assert (new.name, new.rounds, new.formats, new.get("core")) == ("mine", False, ("fp32", "bf16"), "mine-v1")
    assert jax.tree.structure(new) != jax.tree.structure(CHIP)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensor.row": 256}, r"chip.replace: no value is called 'tensor.row'. Did you mean 'tensor.rows'\? Known: .*link.rate"),
        ({"tensor": 256}, r"'tensor' is a group of values; name one of them: tensor.rows, "),
        ({"tensor.rows": 0}, r"chip.replace: tensor.rows = 0 is out of range. Allowed: a finite number from 1 to 65536"),
        ({"tensor.rate": 1.5}, r"tensor.rate = 1.5 is out of range. Allowed: a finite number greater than 0, up to 1"),
        ({"tensor.clock_hz": np.float32("nan")}, r"tensor.clock_hz = nan is out of range"),
        ({"tensor.clock_hz": 10**400}, r"tensor.clock_hz = inf is out of range"),
        ({"tensor.rows": "256"}, r"tensor.rows = '256' is a str, not a number. Allowed: a number from 1 to 65536"),
        ({"tensor.rows": True}, r"tensor.rows = True is a bool, not a number"),
        ({"tensor.rows": None}, r"tensor.rows = None is a NoneType, not a number"),
        ({"tensor.rows": 1j}, r"tensor.rows = 1j is a complex, not a number"),
        ({"tensor.rows": np.array(0)}, r"tensor.rows = 0 is out of range"),
        ({"tensor.rows": np.array(["a"])}, r"tensor.rows is an array of <U1; give real numbers"),
        ({"tensor.rows": jnp.array([True])}, r"tensor.rows is an array of bool; give real numbers"),
        ({"rounds": 1}, r"rounds = 1; give a bool"),
        ({"formats": "bf16"}, r"chip.replace: formats = 'bf16' must be a list of number formats. Known: "),
        ({"formats": ["bf17"]}, r"formats contains 'bf17'. Did you mean 'bf16'\?"),
        ([("tensor.rows", 1.0)], r"got a list; give a dict of dotted paths"),
    ],
)
def test_replace_says_what_is_wrong(changes, message):
    with pytest.raises(ChipError, match=message):
        CHIP.replace(changes)


def test_get_suggests_the_closest_name():
    with pytest.raises(
        ChipError, match=r"chip.get: no value is called 'hbm.bandwith_bytes_per_s'. Did you mean 'hbm.bandwidth_bytes_per_s'\?"
    ):
        CHIP.get("hbm.bandwith_bytes_per_s")


def test_the_gradient_is_a_chip_shaped_record_that_trees_accept():
    gradient = jax.grad(seconds)(CHIP)
    assert gradient.tensor.rows == pytest.approx(-1e6 / (128.0**2 * 2.4e9))
    assert gradient.dma.latency_s == 1.0
    assert gradient.hbm.stacks == 0.0
    flipped = jax.tree.map(lambda x: -x, gradient)
    assert flipped.dma.latency_s == -1.0
    nothing = jax.tree.map(lambda x: None, gradient)
    assert leaves_by_path(nothing)["tensor.rows"] is None
    assert jax.tree.leaves(nothing) == []
    assert "leaves: 63 float32[]" in repr(gradient)
    assert "63 NoneType" in repr(nothing)


def test_gradients_flow_through_replaced_values():
    def time_of(rows, latency_s):
        return seconds(CHIP.replace({"tensor.rows": rows, "dma.latency_s": latency_s}))

    by_rows, by_latency = jax.grad(time_of, argnums=(0, 1))(64.0, 1e-6)
    assert by_rows == pytest.approx(-1e6 / (64.0**2 * 2.4e9))
    assert by_latency == 1.0


def test_a_batch_of_chips_by_replace_equals_stacked_chips():
    rows = [64, 128, 256]
    batch = CHIP.replace({"tensor.rows": jnp.array(rows)})
    assert batch.tensor.rows.dtype == jnp.float32
    axes = jax.tree.map(lambda leaf: 0 if hasattr(leaf, "shape") else None, batch)
    by_axes = jax.vmap(seconds, in_axes=(axes,))(batch)
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.float32(x) for x in leaves]), *[CHIP.replace({"tensor.rows": n}) for n in rows])
    np.testing.assert_array_equal(by_axes, jax.vmap(seconds)(stacked))
    np.testing.assert_allclose(by_axes, [seconds(CHIP.replace({"tensor.rows": n})) for n in rows], rtol=1e-6)
    assert "62 float, 1 float32[3]" in repr(batch)


def test_numpy_arrays_are_a_batch_of_floats():
    assert CHIP.replace({"tensor.rows": np.array([64, 128])}).tensor.rows.dtype == np.float64
    assert CHIP.replace({"tensor.rows": np.array([64, 128], np.float32)}).tensor.rows.dtype == np.float32


def test_values_of_any_number_type_share_one_trace():
    traces = []

    @jax.jit
    def compiled(chip):
        traces.append(chip)
        return seconds(chip)

    for value in (64, 64.5, np.float32(65), np.float64(66), np.int64(67), np.array(68)):
        compiled(CHIP.replace({"tensor.rows": value}))
    compiled(load_chip("trainium2"))
    compiled(load_chip("trainium2"))
    assert len(traces) == 1
    assert repr(traces[0]).startswith("Chip('trainium2', NeuronCore-v3, leaves: 63 float32[]")


def test_one_chip_reads_as_one_line():
    assert repr(CHIP) == "Chip('trainium2', NeuronCore-v3, 8 cores of 128x128 at 2.4 GHz, 96 GiB HBM at 2.9 TB/s)"


def test_power_of_seconds_follows_from_the_name():
    powers = {path: time_power(path) for path in leaf_paths()}
    assert {path for path, power in powers.items() if power == 1} == {
        "tensor.warmup_s",
        "scalar.table_load_s",
        "dma.latency_s",
        "dma.issue_s",
        "link.latency_s",
    }
    assert {path for path, power in powers.items() if power == -1} == {
        "tensor.clock_hz",
        "vector.clock_hz",
        "scalar.clock_hz",
        "gpsimd.clock_hz",
        "dma.bandwidth_bytes_per_s",
        "hbm.bandwidth_bytes_per_s",
        "link.bandwidth_bytes_per_s",
        "energy.static_w",
        "tensor.chip_peak_flop_per_s",
    }

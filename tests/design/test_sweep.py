import jax
import numpy as np
import pytest
import xarray
from hand_programs import dma, matmul, program

import trn_jax
from trn_jax.design.sweep import _evaluate, sweep
from trn_jax.timing.latency import latency
from trn_jax.units import MIB

AXES = {"tensor.rows": [64, 128, 100.5], "hbm.bandwidth_bytes_per_s": [1e12, 4e12], "sbuf.size_bytes": [2 * MIB, 24 * MIB]}


def test_every_point_is_the_latency_of_that_chip(layer, chip):
    points = sweep(layer, chip, AXES)
    assert points.latency_s.dims == tuple(AXES)
    for rows in AXES["tensor.rows"]:
        for bandwidth in AXES["hbm.bandwidth_bytes_per_s"]:
            for size in AXES["sbuf.size_bytes"]:
                values = {"tensor.rows": rows, "hbm.bandwidth_bytes_per_s": bandwidth, "sbuf.size_bytes": size}
                with jax.enable_x64(True):
                    expected = float(latency(layer, chip.replace(values)))
                assert float(points.latency_s.sel(values)) == pytest.approx(expected, rel=1e-12)


def test_overlap_is_that_of_latency(layer, chip):
    axes = {"tensor.rows": [128.0]}
    for overlap in ("compiled", 1.0, {"engines": 0.3}):
        expected = float(latency(layer, chip, overlap=overlap))
        assert float(sweep(layer, chip, axes, overlap=overlap).latency_s[0]) == pytest.approx(expected, rel=1e-6)


def test_the_result_is_an_xarray_dataset_with_units(layer, chip):
    points = sweep(layer, chip, AXES)
    assert isinstance(points, xarray.Dataset)
    assert [points[path].attrs["units"] for path in AXES] == ["1", "B/s", "B"]
    assert points.latency_s.attrs["units"] == "s"
    np.testing.assert_array_equal(points["tensor.rows"], [64.0, 128.0, 100.5])
    assert points.attrs["chip"] == "trainium2"
    assert points.utilisation.dims == (*AXES, "engine")
    assert float(points.utilisation.max()) <= 1
    busy = points.utilisation.sel(engine="tensor") * points.latency_s
    assert float(busy.sel({"tensor.rows": 64}).min()) > 1.9 * float(busy.sel({"tensor.rows": 128}).max())


def test_chunks_change_nothing(layer, chip):
    whole = sweep(layer, chip, AXES, chunk=12)
    for chunk in (1, 5):
        assert sweep(layer, chip, AXES, chunk=chunk).identical(whole)


def test_a_large_grid_is_timed_in_chunks_of_one_size(layer, chip):
    axes = {"tensor.clock_hz": np.linspace(1e9, 3e9, 250), "hbm.bandwidth_bytes_per_s": np.geomspace(1e11, 1e13, 400)}
    done = []
    points = sweep(layer, chip, axes, chunk=4096, dtype="float32", progress=lambda so_far, of: done.append((so_far, of)))
    assert points.latency_s.shape == (250, 400)
    assert bool(points.feasible.all())
    assert [so_far for so_far, _ in done[:2]] == [4096, 8192]
    assert done[-1] == (100_000, 100_000)
    assert (np.diff(points.latency_s, axis=0) <= 0).all()
    assert (np.diff(points.latency_s, axis=1) <= 0).all()


def test_a_sweep_compiles_once_whatever_the_values_and_the_chip(product, chip):
    sweep(product, chip, {"tensor.rows": [32, 64, 128]}, chunk=2)
    before = _evaluate._cache_size()
    sweep(product, chip, {"tensor.rows": np.linspace(1, 200, 100)}, chunk=2)
    sweep(product, chip, {"tensor.rows": [np.float32(3), 4]}, chunk=2)
    sweep(product, trn_jax.load_chip("trainium2").replace({"vector.lanes": 64}), {"tensor.rows": [8, 16]}, chunk=2)
    assert _evaluate._cache_size() == before


def test_several_programs_are_a_dimension_and_say_how_many_compilations_they_need(layer, product, chip):
    small = program([(dma(1e5), ()), (matmul(64.0, 64.0, 64.0), (0,))])
    points = sweep({"layer": layer, "product": product, "small": small}, chip, {"tensor.cols": [64, 128]})
    assert points.latency_s.dims == ("program", "tensor.cols")
    assert list(points.program.values) == ["layer", "product", "small"]
    assert points.attrs["compilations"] == 2
    alone = sweep(product, chip, {"tensor.cols": [64, 128]})
    np.testing.assert_array_equal(points.latency_s.sel(program="product"), alone.latency_s)
    assert list(sweep([layer, product], chip, {"tensor.cols": [64]}).program.values) == [0, 1]


def test_a_point_that_cannot_run_has_a_status_and_no_time(layer, chip):
    sizes = [*np.linspace(1, 40, 99) * MIB, 0.1 * MIB]
    points = sweep(layer, chip, {"sbuf.size_bytes": sizes})
    assert int(points.feasible.sum()) == 99
    bad = points.isel({"sbuf.size_bytes": -1})
    assert np.isnan(bad.latency_s)
    assert np.isnan(bad.utilisation).all()
    assert not bool(bad.feasible)
    assert float(bad.slack_bytes.sel(memory="sbuf")) < 0 < float(points.slack_bytes.isel({"sbuf.size_bytes": 0}).sel(memory="sbuf"))
    assert points.status.attrs["flag_meanings"].split()[int(bad.status)] == "does_not_fit_sbuf"


def test_the_limits_are_those_of_the_smallest_tiles(product, chip):
    points = sweep(product, chip, {"psum.size_bytes": [128 * 512 * 4 - 1, 128 * 512 * 4], "hbm.size_bytes": [0.9e6, 1e6]})
    meanings = np.array(points.status.attrs["flag_meanings"].split())
    assert [list(row) for row in meanings[points.status.values]] == [
        ["does_not_fit_psum", "does_not_fit_psum"],
        ["does_not_fit_hbm", "ok"],
    ]


def test_times_that_are_not_finite_are_marked(chip):
    endless = program([(dma(float("inf")), ())])
    points = sweep(endless, chip, {"hbm.size_bytes": [1e12]})
    assert int(points.status[0]) > 0
    assert np.isnan(points.latency_s[0])


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"hbm.bandwidth_bytes_per_s": [1e12, -1.0]}, r"hbm.bandwidth_bytes_per_s = -1 is out of range"),
        ({"tensor.rows": [64, float("nan")]}, r"tensor.rows = nan is out of range"),
        ({"tensor.row": [64]}, r"'tensor.row'. Did you mean 'tensor.rows'"),
        ({"tensor": [64]}, r"'tensor' is a group of values"),
        ({"name": ["a"]}, r"'name' is no number"),
        ({"tensor.rows": []}, r"axis tensor.rows is \[\]"),
        ({"tensor.rows": 64}, r"axis tensor.rows is 64; give a list"),
        ({"tensor.rows": ["many"]}, r"not a number"),
        ({}, r"give a dict of dotted paths"),
    ],
)
def test_a_bad_axis_is_named(layer, chip, axes, message):
    with pytest.raises(trn_jax.ChipError, match=message):
        sweep(layer, chip, axes)


def test_other_bad_arguments_say_what_is_accepted(layer, chip):
    axes = {"tensor.rows": [64]}
    with pytest.raises(trn_jax.ProgramError, match="got no program"):
        sweep([], chip, axes)
    with pytest.raises(trn_jax.ProgramError, match="Make one with trn_jax.trace"):
        sweep([layer, np.sin], chip, axes)
    with pytest.raises(trn_jax.ProgramError, match="chunk = 0"):
        sweep(layer, chip, axes, chunk=0)
    with pytest.raises(trn_jax.ProgramError, match="dtype = 'bfloat16'"):
        sweep(layer, chip, axes, dtype="bfloat16")
    with pytest.raises(trn_jax.ChipError, match="batch shape"):
        sweep(layer, chip.replace({"tensor.rows": np.ones(3)}), axes)


def test_a_progress_bar_is_shown_when_asked_for(product, chip, capsys):
    sweep(product, chip, {"tensor.rows": [64, 128]}, progress=True)
    assert "sweep: 100%" in capsys.readouterr().err

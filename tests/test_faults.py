"""Faults spoil what they should, at every fidelity, the same way for the same seed, and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import trn_jax
from trn_jax.faults import BitFlip, DeadColumn, RemappedColumns, SilentCorruption, StuckPE

ROWS, COLS = 4, 3
CHIP = trn_jax.load_chip("trainium2").replace({"tensor.rows": ROWS, "tensor.cols": COLS})
FIDELITIES = ("fused", "tiled", "systolic")


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


X, W = normal(0, 5, 10), normal(1, 10, 7)
product = lambda x, w: x @ w


def run(f, *args, **options):
    return np.asarray(jax.jit(trn_jax.emulate(f, CHIP, **options))(*args))


def broken_column_by_column(x, w, stuck, place=lambda n: n % COLS):
    """The product as a loop over K tiles and rows in NumPy's float32; `stuck` maps (row, column) to a function of the bits."""
    out = np.zeros((x.shape[0], w.shape[1]), np.float32)
    for n in range(w.shape[1]):
        for start in range(0, x.shape[1], ROWS):
            partial = np.zeros(x.shape[0], np.float32)
            for row in range(ROWS):
                if start + row < x.shape[1]:
                    partial = partial + x[:, start + row] * w[start + row, n]
                if (row, place(n)) in stuck:
                    partial = stuck[row, place(n)](partial.view(np.uint32)).view(np.float32)
            out[:, n] += partial
    return out


@pytest.mark.parametrize("fidelity", FIDELITIES)
@pytest.mark.parametrize(("bit", "value"), [(31, 1), (31, 0), (23, 1), (22, 0), (24, 0)])
def test_a_stuck_pe_against_a_loop_over_rows(fidelity, bit, value):
    mask = np.uint32(1 << bit)
    stuck = {(1, 2): lambda word: word | mask if value else word & ~mask}
    got = run(product, X, W, fidelity=fidelity, faults=[StuckPE(1, 2, bit, value)])
    np.testing.assert_allclose(got, broken_column_by_column(X, W, stuck), rtol=2e-5, atol=2e-6)
    same = [n for n in range(7) if n % COLS != 2]
    np.testing.assert_array_equal(got[:, same], run(product, X, W, fidelity=fidelity)[:, same])
    assert (got[:, 2] != run(product, X, W, fidelity=fidelity)[:, 2]).any()


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_several_stuck_pes_in_one_column_and_the_last_row(fidelity):
    sign, top = np.uint32(1 << 31), np.uint32(1 << 22)
    stuck = {(0, 0): lambda word: word & ~sign, (3, 0): lambda word: word | top, (2, 1): lambda word: word | sign}
    faults = [StuckPE(0, 0, 31, 0), StuckPE(3, 0, 22, 1), StuckPE(2, 1, 31, 1)]
    got = run(product, X, W, fidelity=fidelity, faults=faults)
    np.testing.assert_allclose(got, broken_column_by_column(X, W, stuck), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("fidelity", FIDELITIES)
def test_dead_columns_give_zeros_and_remapping_around_them_heals(fidelity):
    sound = run(product, X, W, fidelity=fidelity)
    dead = run(product, X, W, fidelity=fidelity, faults=[DeadColumn(1)])
    np.testing.assert_array_equal(dead, np.where(np.arange(7) % COLS == 1, 0, sound))
    healed = run(product, X, W, fidelity=fidelity, faults=[DeadColumn(1), RemappedColumns((1,))])
    np.testing.assert_array_equal(healed, sound)
    elsewhere = run(product, X, W, fidelity=fidelity, faults=[DeadColumn(2), RemappedColumns((0,))])
    np.testing.assert_array_equal(elsewhere, np.where(np.arange(7) % 2 == 1, 0, sound))  # columns 1 and 2 take turns


@pytest.mark.parametrize("fidelity", ["tiled", "systolic"])
def test_any_layout_batched_and_convolved(fidelity):
    batched = lambda a, b: jnp.einsum("bkm,nbk->bnm", a, b)
    a, b = normal(2, 2, 6, 4), normal(3, 5, 2, 6)
    options = {"fidelity": fidelity, "faults": [DeadColumn(0)]}
    got, sound = run(batched, a, b, **options), run(batched, a, b, fidelity=fidelity)
    assert 0 < (got == 0).mean() < 1
    assert ((got == sound) | (got == 0)).all()
    convolution = lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME")
    x, w = normal(4, 1, 2, 5, 5), normal(5, 4, 2, 3, 3)
    got, sound = run(convolution, x, w, **options), run(convolution, x, w, fidelity=fidelity)
    np.testing.assert_array_equal(got, np.where((np.arange(4) % COLS == 0)[None, :, None, None], 0, sound))


def test_flips_are_single_bits_at_the_rate_and_of_the_chosen_kind():
    x = normal(6, 100, 200)
    flipped = run(jnp.negative, x, faults=[BitFlip("sbuf", 0.05)], seed=1)
    differences = flipped.view(np.uint32) ^ (-x).view(np.uint32)
    hit = differences[differences != 0]
    assert abs(hit.size / x.size - 0.05) < 5 * np.sqrt(0.05 * 0.95 / x.size)
    assert (hit & (hit - 1) == 0).all()
    assert np.unique(hit).size == 32
    chosen = run(jnp.negative, x, faults=[BitFlip("sbuf", 0.5, bits=(3, 30))], seed=1).view(np.uint32) ^ (-x).view(np.uint32)
    assert set(np.unique(chosen)) == {0, 1 << 3, 1 << 30}


def test_bits_are_those_of_the_values_own_dtype():
    x = jnp.asarray(normal(7, 64, 64), jnp.bfloat16)
    flipped = jax.jit(trn_jax.emulate(jnp.negative, CHIP, faults=[BitFlip("sbuf", 1.0, bits=(15,))], seed=1))(x)
    np.testing.assert_array_equal(np.asarray(flipped, np.float32), np.asarray(x, np.float32))
    unchanged = jax.jit(trn_jax.emulate(jnp.negative, CHIP, faults=[BitFlip("sbuf", 1.0, bits=(20,))], seed=1))(x)
    np.testing.assert_array_equal(np.asarray(unchanged, np.float32), -np.asarray(x, np.float32))


@pytest.mark.parametrize(
    ("fault", "f"),
    [
        (BitFlip("psum", 0.3), lambda x: x @ x),
        (BitFlip("hbm", 0.3), lambda x: x),
        (SilentCorruption("tensor", 0.3), lambda x: x @ x),
        (SilentCorruption("scalar", 0.3), jnp.exp),
        (SilentCorruption("vector", 0.3), lambda x: x + 1),
        (SilentCorruption("dma", 0.3), lambda x: jnp.concatenate([x, x])),
    ],
    ids=lambda x: "" if callable(x) else str(x),
)
def test_only_where_they_belong(fault, f):
    x = normal(8, 20, 20)
    share = (run(f, x, faults=[fault], seed=2) != run(f, x)).mean()
    assert 0.2 < share < 0.4
    idle = {"tensor": jnp.exp, "vector": jnp.exp, "scalar": lambda x: x + 1, "dma": jnp.exp}.get(getattr(fault, "engine", ""))
    idle = idle or ({"psum": jnp.exp, "hbm": lambda x: jnp.float32(1) + 0 * x}[fault.memory])
    if getattr(fault, "memory", "") != "hbm":
        np.testing.assert_array_equal(run(idle, x, faults=[fault], seed=2), run(idle, x))


def test_the_same_seed_gives_the_same_faults_and_loops_differ_by_iteration():
    def f(x):
        return jax.lax.scan(lambda c, _: (c, c + 1), x, None, length=3)[1]

    x = normal(9, 40, 40)
    options = {"faults": [SilentCorruption("vector", 0.3)]}
    once, again, other = (run(f, x, seed=seed, **options) for seed in (4, 4, 5))
    np.testing.assert_array_equal(once, again)
    assert (once != other).any()
    hits = once != x + 1
    assert (hits[0] != hits[1]).any()
    assert (hits[1] != hits[2]).any()


def test_rate_zero_is_the_sound_chip_and_needs_no_seed():
    f = lambda x, w: jax.nn.softmax(jnp.tanh(x @ w) @ w.T)
    faults = [BitFlip("sbuf", 0.0), BitFlip("hbm", 0), SilentCorruption("tensor", 0.0)]
    options = {"autocast": trn_jax.AutoCast("all", "bf16")}
    sound = jax.jit(trn_jax.emulate(f, CHIP, **options)).lower(X, W).as_text()
    assert jax.jit(trn_jax.emulate(f, CHIP, faults=faults, **options)).lower(X, W).as_text() == sound
    np.testing.assert_array_equal(run(f, X, W, faults=faults, **options), run(f, X, W, **options))
    stochastic = options | {"rounding": "stochastic", "seed": 3}
    np.testing.assert_array_equal(run(f, X, W, faults=faults, **stochastic), run(f, X, W, **stochastic))


def test_tiny_rates_are_not_rounded_away():
    x = jnp.zeros((512, 512)) + 1
    count = lambda seed: (trn_jax.emulate(jnp.negative, CHIP, faults=[BitFlip("sbuf", 2.0**-17)], seed=seed)(x) != -x).sum()
    mean = np.mean(jax.jit(jax.vmap(count))(jnp.arange(40, dtype=jnp.uint32)))
    assert abs(mean - 2) < 5 * np.sqrt(2 / 40)


def test_gradients_pass_and_batches_of_seeds_spread():
    faults = [BitFlip("sbuf", 0.1), StuckPE(1, 2, 22, 1)]
    f = lambda seed, x: trn_jax.emulate(product, CHIP, faults=faults, seed=seed)(x, W).sum()
    gradient = jax.jit(jax.grad(f, 1))(jnp.uint32(1), X)
    np.testing.assert_allclose(gradient, np.broadcast_to(W.sum(1), X.shape), rtol=1e-5)
    spread = jax.jit(jax.vmap(f, (0, None)))(jnp.arange(4, dtype=jnp.uint32), X)
    assert np.unique(spread).size == 4
    backward = jax.jit(trn_jax.emulate(jax.grad(lambda x: jnp.tanh(x @ W).sum()), CHIP, faults=faults, seed=1))(X)
    assert (backward != jax.grad(lambda x: jnp.tanh(x @ W).sum())(X)).any()


def test_an_ideal_chip_may_be_broken_too():
    ideal = trn_jax.load_chip("ideal")
    np.testing.assert_array_equal(trn_jax.emulate(product, ideal, faults=[DeadColumn(0)], fidelity="fused")(X, W)[:, 0], 0)


def test_integers_are_left_alone():
    f = lambda i: (i + 1, i @ i)
    i = jnp.arange(9).reshape(3, 3)
    faults = [BitFlip("sbuf", 1.0), SilentCorruption("vector", 1.0), SilentCorruption("tensor", 1.0), DeadColumn(0)]
    for got, sound in zip(trn_jax.emulate(f, CHIP, faults=faults, seed=1)(i), f(i), strict=True):
        np.testing.assert_array_equal(got, sound)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BitFlip("sram", 0.1), "Known: hbm, psum, sbuf"),
        (lambda: BitFlip("sbuf", 2.0), "rate 2.0 is no probability"),
        (lambda: BitFlip("sbuf", 0.1, bits=()), "at least one"),
        (lambda: SilentCorruption("vectr", 0.1), "Did you mean 'vector'"),
        (lambda: StuckPE(0, 0, 32, 1), "bit is 0"),
        (lambda: StuckPE(-1, 0, 3, 1), "row -1 is no position"),
        (lambda: trn_jax.emulate(product, CHIP, faults=[StuckPE(4, 0, 3, 1)]), "outside the array of 4 x 3 PEs"),
        (lambda: trn_jax.emulate(product, CHIP, faults=[RemappedColumns((0, 1, 2))]), "leaves none of the 3 columns"),
        (lambda: RemappedColumns(2), r"cols 2 is no sequence. Write cols=\(2,\)"),
        (lambda: BitFlip("sbuf", 0.1, bits=3), r"bits 3 is no sequence. Write bits=\(3,\)"),
        (lambda: BitFlip(["sbuf"], 0.1), "Did you mean 'sbuf'"),
    ],
)
def test_faults_that_cannot_be(make, message):
    with pytest.raises(trn_jax.FaultError, match=message):
        make()


def test_other_mistakes_are_named():
    with pytest.raises(TypeError, match="holds 'dead'"):
        trn_jax.emulate(product, CHIP, faults=["dead"])
    with pytest.raises(TypeError, match=r"got DeadColumn\(col=0\) alone. Write \[DeadColumn"):
        trn_jax.emulate(product, CHIP, faults=DeadColumn(0))
    with pytest.raises(trn_jax.FormatError, match="Faults that happen at random need seed="):
        trn_jax.emulate(product, CHIP, faults=[BitFlip("sbuf", 0.1)])
    ragged = lambda x, w: jax.lax.ragged_dot(x, w, jnp.array([2, 3]))
    with pytest.raises(trn_jax.UnsupportedError, match="ragged"):
        trn_jax.emulate(ragged, CHIP, faults=[DeadColumn(0)])(X, normal(10, 2, 10, 4))
    with pytest.raises(trn_jax.FaultError, match="not modelled together"):
        trn_jax.emulate(product, CHIP, faults=[DeadColumn(0)], autocast=trn_jax.AutoCast("matmult", "fp8_e5m2", scaling="tensor"))

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hand_programs import all_reduce, dma, matmul, program, scalar, vector
from jax import ShapeDtypeStruct
from traced_programs import mlp_shapes, mlp_step

import trn_jax
from trn_jax.report.estimate import estimate
from trn_jax.timing.trace import trace


@pytest.fixture(scope="session")
def chip():
    return trn_jax.load_chip("trainium2")


@pytest.fixture(scope="session")
def layer():
    """Load, product, activation, store; and an all-reduce at the end."""
    rows = [
        (dma(2e6), ()),
        (matmul(512.0, 512.0, 2048.0), (0,)),
        (scalar(512.0 * 2048.0), (1,)),
        (vector(512.0 * 2048.0), (1, 2)),
        (dma(4e6), (3,)),
        (all_reduce(4e6), (3,)),
    ]
    return program(rows)


@pytest.fixture(scope="session")
def nested():
    """A loop of 12 in a loop of 20, with something after it."""
    rows = [
        (dma(1e6), ()),
        (dma(3e5), ()),
        (matmul(128.0, 128.0, 512.0), (0, 1)),
        (vector(65536.0), (2,)),
        (None, (3,)),
        (scalar(65536.0), (4,)),
        (None, (5,)),
        (vector(1e5), (6,)),
        (dma(1e6), (7,)),
    ]
    return program(rows, [(2, 4, [((2,), 3)]), (1, 6, [((2,), 5)])], trips={4: 12, 6: 20})


@pytest.fixture(scope="session")
def idle():
    """Nothing has to move: all data are still in SBUF."""
    return program([(dma(1e6), ()), (vector(1e5), (0,))], reuse_bytes={0: 1e6})


@pytest.fixture(scope="session")
def train_step():
    return trace(mlp_step, *mlp_shapes(batch=256))


@pytest.fixture(scope="session")
def scanned():
    def f(x, weights):
        def layer(x, w):
            return jnp.tanh(x @ w), None

        return jax.lax.scan(layer, x, weights)[0]

    return trace(f, ShapeDtypeStruct((256, 256), np.float32), ShapeDtypeStruct((24, 256, 256), np.float32))


@pytest.fixture(scope="session", params=["layer", "nested", "idle", "train_step", "scanned"])
def any_program(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session", params=[None, 0.0, 1.0, {"engines": 0.9, "collectives": 0.1}], ids=["0.8", "0", "1", "levels"])
def any_report(request, any_program, chip):
    return estimate(any_program, chip, overlap=request.param)

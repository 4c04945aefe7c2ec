import pytest
from hand_programs import dma, matmul, program, scalar, vector

import trn_jax


@pytest.fixture(scope="session")
def chip():
    return trn_jax.load_chip("trainium2")


@pytest.fixture(scope="session")
def layer():
    """Load, product, activation, store; the last load depends on SBUF."""
    rows = [
        (dma(2e6), ()),
        (matmul(512.0, 512.0, 2048.0), (0,)),
        (scalar(512.0 * 2048.0), (1,)),
        (dma(4e6), (2,)),
        (vector(512.0 * 2048.0), (3,)),
    ]
    return program(rows, reuse_bytes={3: 20e6})


@pytest.fixture(scope="session")
def product():
    return program([(dma(1e6), ()), (matmul(1024.0, 1024.0, 1024.0), (0,))])

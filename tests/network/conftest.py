"""Runs a function on every rank of a small mesh, under each way that shard_map may be used."""

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from trn_jax.network import make_mesh


@pytest.fixture
def on_mesh():
    """`on_mesh(f, R)`: x_R -> f on x[0] .. x[R-1], one rank each; the results stacked, so that ranks can be compared."""

    def build(f, ranks, *, check_vma=True):
        mesh = make_mesh(ranks, "r", devices=jax.devices("cpu"))
        return jax.shard_map(lambda x: f(x[0])[None], mesh=mesh, in_specs=P("r"), out_specs=P("r"), check_vma=check_vma)

    return build


@pytest.fixture
def on_ranks(on_mesh):
    """`on_ranks(f, x_R)`: the values of `on_mesh(f, R)(x_R)`, jitted or not."""

    def run(f, x_R, *, check_vma=True, jit=True):
        mapped = on_mesh(f, len(x_R), check_vma=check_vma)
        return np.asarray((jax.jit(mapped) if jit else mapped)(x_R))

    return run


@pytest.fixture
def replicated_out():
    """`replicated_out(f, R)`: x_R -> f on one rank each, with one result for all of them, as psum's is used."""

    def build(f, ranks, *, check_vma=True):
        mesh = make_mesh(ranks, "r", devices=jax.devices("cpu"))
        return jax.shard_map(lambda x: f(x[0]), mesh=mesh, in_specs=P("r"), out_specs=P(), check_vma=check_vma)

    return build


@pytest.fixture
def permutes():
    """`permutes(fn, *args)`: every ppermute equation in the program of fn, as often as it runs."""

    def find(fn, *args):
        found = []

        def walk(jaxpr, times):
            for eqn in jaxpr.eqns:
                if eqn.primitive.name == "ppermute":
                    found.extend([eqn] * times)
                for inner in jex_core.jaxprs_in_params(eqn.params):
                    walk(inner, times * eqn.params.get("length", 1))

        walk(jax.make_jaxpr(fn)(*args).jaxpr, 1)
        return found

    return find


@pytest.fixture
def bits():
    """The bits of a float array as integers, so that -0.0 and NaN payloads count."""
    return lambda x: np.asarray(x).view(f"uint{8 * jnp.asarray(x).dtype.itemsize}")

"""Every layer of Flax: exact on the ideal chip, close on others, differentiable, timed."""

import flax.linen as nn
import jax
import pytest
from corpus import check
from corpus_layers import CASES, LINEN, LINEN_ELSEWHERE, NNX, NNX_ELSEWHERE, SEQUENCE
from flax import nnx

import trn_jax


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_layer(name):
    check(CASES[name])


@pytest.mark.parametrize(("library", "layers"), [(nn, set(LINEN) | LINEN_ELSEWHERE), (nnx, set(NNX) | NNX_ELSEWHERE)])
def test_every_layer_of_flax_is_in_the_corpus(library, layers):
    kinds = [name for name, value in vars(library).items() if isinstance(value, type) and issubclass(value, library.Module)]
    assert set(kinds) == layers


@pytest.mark.slow
def test_a_layer_in_the_fp8_of_others_is_refused_on_trainium2_with_what_the_chip_has():
    layer = nn.Dense(3, dot_general_cls=nn.Fp8DirectDotGeneralOp)
    run = trn_jax.emulate(lambda x: layer.init_with_output(jax.random.key(0), x)[0], trn_jax.load_chip("trainium2"))
    with pytest.raises(trn_jax.FormatError, match="has no fp8_e4m3fn operands; it takes fp32, tf32, bf16, fp16, fp8_e5m2, fp8_e4m3"):
        run(SEQUENCE)

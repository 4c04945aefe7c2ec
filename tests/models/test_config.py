import pytest

from trn_jax.errors import ModelError
from trn_jax.models import GPTConfig, HeadShard, shard_heads


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": 30, "n_heads": 4}, r"d_model 30 does not divide into 4 heads; make d_model a multiple"),
        ({"n_heads": 4, "n_kv_heads": 3}, r"4 query heads cannot share 3 key/value heads evenly"),
        ({"n_layers": 0}, r"n_layers is 0; it must be an integer of at least 1"),
        ({"vocab_size": 2.0}, r"vocab_size is 2.0"),
        ({"n_kv_heads": True}, r"n_kv_heads is True"),
        ({"positions": "rotory"}, r"Did you mean 'rotary'"),
        ({"activation": "relu"}, r"Known: gelu, swiglu"),
        ({"norm": "batch"}, r"Known: layer, rms"),
        ({"d_model": 12, "n_heads": 4}, r"a head has 3 .* make it even or use learned positions"),
        ({"dropout": 1.0}, r"dropout is 1.0"),
        ({"param_dtype": "int8"}, r"param_dtype is 'int8'"),
        ({"compute_dtype": "bf15"}, r"compute_dtype is 'bf15'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_size_or_choice_is_refused_with_its_remedy(changes, message):
    with pytest.raises(ModelError, match=message):
        GPTConfig(**changes)


def test_swiglu_and_gelu_have_about_as_many_weights():
    gelu, swiglu = (GPTConfig(d_model=384, activation=kind).parameter_count() for kind in ("gelu", "swiglu"))
    assert abs(gelu - swiglu) / gelu < 0.02


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "shard"),
    [
        (32, 8, 2, HeadShard(query_heads=16, kv_heads=4, kv_copies=1)),
        (32, 8, 16, HeadShard(query_heads=2, kv_heads=1, kv_copies=2)),
        (32, 8, 8, HeadShard(query_heads=4, kv_heads=1, kv_copies=1)),
    ],
)
def test_heads_divide_over_ranks_and_are_copied_when_there_are_too_few(heads, kv_heads, ranks, shard):
    assert shard_heads(heads, kv_heads, ranks) == shard


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "message"),
    [
        (33, 2, 1, "33 query heads cannot share 2 key/value heads"),
        (3, 2, 1, "3 query heads cannot share 2 key/value heads"),
        (32, 8, 3, "32 query heads do not divide over 3 ranks"),
        (48, 4, 6, "4 key/value heads neither divide over 6 ranks nor divide into them"),
        (4, 0, 1, "must all be at least 1"),
    ],
)
def test_heads_that_do_not_divide_are_refused(heads, kv_heads, ranks, message):
    with pytest.raises(ModelError, match=message):
        shard_heads(heads, kv_heads, ranks)

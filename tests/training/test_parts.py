import types

from trn_jax.training.parts import parts_text, seconds_by_part


def operation(scope, seconds):
    return types.SimpleNamespace(scope=scope, seconds=seconds)


OPERATIONS = [
    operation("jvp(block0)/mlp", 1.0),
    operation("transpose(jvp(block0))/mlp", 2.0),
    operation("transpose(jvp(block1))/mlp/some einsum", 3.0),
    operation("jvp(block0)/attention", 4.0),
    operation("blocks/rematted_computation/attention", 0.5),
    operation("optimizer", 0.25),
    operation("", 0.125),
    operation("mlpish", 0.125),
]


def test_time_is_summed_by_part_and_direction():
    assert seconds_by_part(OPERATIONS) == {"mlp": (1.0, 5.0), "attention": (4.0, 0.5), "optimizer": (0.25, 0.0), "other": (0.25, 0.0)}


def test_the_table_has_a_line_per_part_and_shares_of_the_whole():
    lines = parts_text(OPERATIONS).splitlines()
    assert len(lines) == 5
    assert lines[1].split() == ["mlp", "1000.000", "ms", "5000.000", "ms", "54.5", "%"]

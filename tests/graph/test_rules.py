"""The rule registry: total over what it meets, extensible by users, loud about what it does not know."""

import jax
import jax.extend.core
import jax.extend.core.primitives
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas, sparse
from jax.interpreters import mlir

import trn_jax
from trn_jax._compat import EXPANDED, REFUSED, trace_graph
from trn_jax.graph.graph import Op, walk
from trn_jax.graph.instruction import ENGINES
from trn_jax.graph.numerics import Numerics
from trn_jax.graph.rules import RULES, VIEWS, lower
from trn_jax.graph.run import evaluate_plain

from programs import PROGRAMS  # isort: skip

TRN2 = trn_jax.load_chip("trainium2")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_loses_nothing(name):
    fn, args = PROGRAMS[name]
    with jax.numpy_rank_promotion("allow"):
        traced = trace_graph(fn, *args)
        outputs = jax.tree.unflatten(traced.out_tree, jax.jit(lambda *xs: evaluate_plain(traced.graph, xs))(*traced.operands))
        expected = jax.jit(fn)(*args)
    assert [np.asarray(x).tobytes() for x in jax.tree.leaves(outputs)] == [np.asarray(x).tobytes() for x in jax.tree.leaves(expected)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_operation_becomes_instructions_of_known_engines_and_kinds(name):
    fn, args = PROGRAMS[name]
    with jax.numpy_rank_promotion("allow"):
        graph = trace_graph(fn, *args).graph
    for node in walk(graph):
        if isinstance(node, Op):
            instructions = lower(node, Numerics())
            for instruction in instructions:
                assert instruction.engine in ENGINES
                assert instruction.kind in trn_jax.engines.KINDS[instruction.engine]
            if node.outputs and not instructions:
                makes_strong = node.name == "convert_element_type" and node.inputs[0].dtype == node.outputs[0].dtype
                assert makes_strong or node.name in VIEWS | {"transpose", "bitcast_convert_type"}
            if instructions:
                assert len(instructions[-1].write_formats) == len(node.outputs)


# Met in traces although jax.extend.core.primitives does not export them.
UNEXPORTED = (
    "all_gather_invariant composite custom_vmap_call debug_callback debug_print device_put io_callback layout_constraint "
    "linear_call mesh_cast optimization_barrier pbroadcast pcast platform_index psum_invariant pure_callback pvary ragged_dot_general "
    "random_clone random_unwrap random_wrap reduce_scatter remat_opt reshard shard_map sharding_constraint split stack tile unreduced_psum "
    "unstack bcoo_dot_general bcoo_fromdense bcoo_todense bcsr_dot_general "
    "relayout reduced_vary_cast vary_unreduced_cast unreduced_pmax unreduced_pmin pbroadcast_dynamic xla_metadata_call eval_jaxpr"
).split()


def test_every_primitive_has_a_rule_is_expanded_or_is_refused_for_a_reason():
    exported = {value.name for value in vars(jax.extend.core.primitives).values() if isinstance(value, jax.extend.core.Primitive)}
    assert len(exported) > 150
    ruled, expanded, refused = set(RULES), set(EXPANDED), set(REFUSED)
    assert exported | set(UNEXPORTED) <= ruled | expanded | refused
    assert not ruled & expanded
    assert not refused & (ruled | expanded)
    assert len(refused) <= 15
    assert all(len(reason.split()) > 10 for reason in REFUSED.values())


def test_a_refused_primitive_names_itself_the_line_the_reason_and_the_way_out():
    double = lambda x: pallas.pallas_call(lambda ref, out: None, out_shape=jax.typeof(x), interpret=True)(x)
    with pytest.raises(trn_jax.UnsupportedError, match=r"'pallas_call' at .*test_rules\.py.*whose inside is not JAX\. Give the plain JAX"):
        trn_jax.emulate(double, TRN2)(jnp.ones(3))


def test_softmax_is_visible_on_vector_and_scalar():
    graph = trace_graph(jax.nn.softmax, jax.ShapeDtypeStruct((128, 512), jnp.float32)).graph
    found = [(i.engine, i.kind, i.function) for node in walk(graph) if isinstance(node, Op) for i in lower(node, Numerics())]
    assert ("vector", "tensor_reduce", "maximum") in found
    assert ("scalar", "activation", "exp") in found
    assert ("vector", "tensor_reduce", "add") in found
    assert any(engine == "vector" and function == "divide" for engine, _, function in found)


def test_sources_and_scopes_point_at_the_user():
    def f(x):
        with jax.named_scope("layer0"):
            return jnp.exp(x)

    (node,) = (n for n in walk(trace_graph(f, jnp.ones(3)).graph) if n.name == "exp")
    assert "test_rules.py" in node.source
    assert node.scope == "layer0"


def test_operations_of_a_shared_custom_rule_have_the_line_of_their_call():
    def f(x):
        x = jax.nn.relu(x)
        return jax.nn.relu(x)

    lines = [node.source for node in walk(trace_graph(f, jnp.ones(3)).graph) if node.name == "max"]
    assert len(set(lines)) == 2
    assert all("test_rules.py" in line for line in lines)


def test_an_array_function_given_directly_is_named():
    (cast, *_) = trn_jax.cast_report(jnp.matmul, TRN2, autocast=trn_jax.AutoCast("matmult", "bf16"))(jnp.ones((2, 2)), jnp.ones((2, 2)))
    assert cast.source == "matmul"


def test_a_sparse_product_is_what_plain_jax_computes_and_costs_its_stored_numbers():
    stored, dense = jnp.array([1.0, 2.0, 3.0]), jnp.ones((3, 2))
    matrix = sparse.BCOO((stored, jnp.array([[0, 1], [1, 2], [2, 0]])), shape=(3, 3))
    product = lambda m, x: m @ x
    np.testing.assert_array_equal(trn_jax.emulate(product, TRN2)(matrix, dense), product(matrix, dense))
    (instruction,) = (i for i in trn_jax.trace(product, matrix, dense).instructions if i.engine == "gpsimd")
    assert instruction.work.elements == stored.size * dense.shape[1]


def test_a_token_is_a_value_of_no_bytes():
    def f(x):
        jax.lax.after_all(jax.lax.create_token(x), jax.lax.create_token(x))
        return x * 2

    assert trn_jax.emulate(f, TRN2)(jnp.ones(2)).tolist() == [2.0, 2.0]
    sizes = {node.name: node.outputs[0].size_bytes for node in walk(trace_graph(f, jnp.ones(2)).graph)}
    assert sizes == {"create_token": 0, "after_all": 0, "mul": 8}


def double_primitive():
    primitive = jax.extend.core.Primitive("double_for_test")
    primitive.def_impl(lambda x: x * 2)
    primitive.def_abstract_eval(lambda x: x)
    mlir.register_lowering(primitive, mlir.lower_fun(lambda x: x * 2, multiple_results=False))
    return primitive


def test_an_unknown_primitive_names_itself_the_users_line_and_the_way_out():
    primitive = double_primitive()
    with pytest.raises(trn_jax.NoRuleError, match=r"'double_for_test' \(.*test_rules\.py.*register_rule\('double_for_test'\)"):
        trn_jax.emulate(lambda x: primitive.bind(x), TRN2)(jnp.ones(3))


def test_what_is_no_rule_is_not_registered():
    with pytest.raises(TypeError, match=r"names of primitives, but got \(3,\)"):
        trn_jax.register_rule(3)
    with pytest.raises(TypeError, match="The rule for double_for_test is 3"):
        trn_jax.register_rule("double_for_test")(3)


def test_a_registered_rule_runs_and_rounds():
    primitive = double_primitive()

    @trn_jax.register_rule("double_for_test")
    def rule(op, numerics):
        value = op.outputs[0]
        work = trn_jax.Work(elements=value.size)
        return trn_jax.Instruction(engine="vector", kind="tensor_scalar", work=work, write_formats=(numerics.write_format(value.dtype),))

    try:
        fn = trn_jax.emulate(lambda x: primitive.bind(x), TRN2, autocast=trn_jax.AutoCast("all", "bf16"))
        assert fn(jnp.array([1 + 2**-9])).tolist() == [2.0]
    finally:
        del RULES["double_for_test"]


@pytest.mark.parametrize(
    ("shape", "kind", "operands"),
    [((8, 32), "tensor_tensor", 2), ((1, 32), "tensor_tensor", 2), ((8, 1), "tensor_scalar", 1), ((1, 1), "tensor_scalar", 1)],
)
def test_an_operand_that_changes_along_a_row_is_streamed(shape, kind, operands):
    graph = trace_graph(lambda x, y: jax.lax.add(x, y) if x.shape == y.shape else x + y, jnp.ones((8, 32)), jnp.ones(shape)).graph
    (instruction,) = (i for node in walk(graph) if node.name == "add" and isinstance(node, Op) for i in lower(node, Numerics()))
    assert (instruction.kind, instruction.work.operands) == (kind, operands)


def test_making_a_weak_type_strong_is_a_view():
    graph = trace_graph(
        lambda x: jax.lax.convert_element_type(x, jnp.float32) * 2, jax.ShapeDtypeStruct((2,), jnp.float32, weak_type=True)
    ).graph
    conversions = [node for node in walk(graph) if isinstance(node, Op) and node.name == "convert_element_type"]
    assert conversions
    assert all(lower(op, Numerics()) == () for op in conversions)

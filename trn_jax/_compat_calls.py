"""Calls put back: for every primitive that calls another function, the same transformation around an interpreted body.

`rebuild(evaluate, operands, stream)` gives the call's outputs with `evaluate(graph, operands, stream, linear=())` in place of JAX's own
evaluation of each function it holds, so that a user's derivative rule, a remat policy or a mesh survives. As `_compat`, it knows
the parameters of jax 0.10.2 and 0.12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import ad

from trn_jax.graph.graph import Graph, Value

if TYPE_CHECKING:
    from trn_jax._compat import Builder

Evaluate = Callable[..., list[Any]]
Rebuild = Callable[[Evaluate, Sequence[Any], Any], list[Any]]


def _remat(builder: Builder, eqn: Any) -> Rebuild:
    """Keeps the policy; where the body is already the recomputation of a backward pass, keeps XLA from merging it with the first."""
    params, body = eqn.params, builder.body(eqn.params["jaxpr"])

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], stream: Any) -> list[Any]:
        if params["differentiated"]:
            chosen = params["prevent_cse"] if isinstance(params["prevent_cse"], tuple) else [params["prevent_cse"]] * len(operands)
            apart = iter(jax.lax.optimization_barrier([x for x, separate in zip(operands, chosen, strict=True) if separate]))
            return evaluate(body, [next(apart) if separate else x for x, separate in zip(operands, chosen, strict=True)], stream)
        again = jax.checkpoint(
            lambda inner_stream, *inner: evaluate(body, inner, inner_stream), prevent_cse=params["prevent_cse"], policy=params["policy"]
        )
        return again(stream, *operands)

    return rebuild


def _shard_map(builder: Builder, eqn: Any) -> Rebuild:
    params, body = eqn.params, builder.body(eqn.params["jaxpr"])
    mesh = params["mesh"]
    manual = frozenset(params.get("manual_axes", params.get("newly_manual_axes", frozenset(mesh.axis_names))))

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], stream: Any) -> list[Any]:
        specs = tuple(params["out_specs"])

        def local(inner_stream: Any, *inner: Any) -> tuple[Any, Any]:
            outputs = evaluate(body, inner, inner_stream)
            return tuple(outputs[: len(specs)]), tuple(jnp.expand_dims(x, 0) for x in outputs[len(specs) :])

        mapped = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(jax.P(), *params["in_specs"]),
            out_specs=(specs, jax.P(tuple(axis for axis in mesh.axis_names if axis in manual))),
            axis_names=manual,
            check_vma=params["check_vma"],
        )
        outputs, more = mapped(stream, *operands)  # what the body returns beyond its outputs, stacked over ranks
        return [*outputs, *more]

    return rebuild


def ranks(name: str, params: Mapping[str, Any]) -> int:
    """On how many shards the body of a call runs at once; 0 where it runs once, on all of its operands."""
    if name != "shard_map":
        return 0
    mesh, manual = params["mesh"], params.get("manual_axes", params.get("newly_manual_axes"))
    return math.prod(size for axis, size in mesh.shape.items() if manual is None or axis in manual)


def _custom_jvp(builder: Builder, eqn: Any) -> Rebuild:
    """Keeps the user's rule: its primal part is interpreted, its part that is linear in the tangents is bound unchanged.

    JAX transposes that part, so nothing that is not linear (a rounding) may be put into it.
    """
    params, body = eqn.params, builder.body(eqn.params["call_jaxpr"])
    num_consts, num_outputs = params["num_consts"], len(eqn.outvars)

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], stream: Any) -> list[Any]:
        consts, args = operands[:num_consts], operands[num_consts:]

        @jax.custom_jvp
        def primal(inner_stream: Any, *inner: Any) -> tuple[Any, ...]:
            return tuple(evaluate(body, inner, inner_stream))

        @primal.defjvp
        def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
            (inner_stream, *values), (_, *directions) = primals, tangents
            jaxpr, jaxpr_consts, zero_outputs = params["jvp_jaxpr_fun"].call_wrapped(*[False] * len(args))
            graph = builder.graph(jaxpr, jaxpr_consts)
            linear = graph.inputs[len(args) :]
            real = values[num_consts:]
            directions = [ad.instantiate_zeros(t) for t in directions[num_consts:]]
            out = evaluate(graph, [*real, *directions], inner_stream, linear=linear)
            values_out, nonzero = out[:num_outputs], iter(out[num_outputs:])
            tangents_out = [_zero_tangent(v) if zero else next(nonzero) for v, zero in zip(values_out, zero_outputs, strict=True)]
            return tuple(values_out), tuple(tangents_out)

        return list(primal(stream, *consts, *args))

    return rebuild


def _zero_tangent(value: Any) -> Any:
    aval = jax.typeof(value).to_tangent_aval()
    return np.zeros(aval.shape, aval.dtype) if aval.dtype == jax.dtypes.float0 else jnp.zeros(aval.shape, aval.dtype)


def _custom_vjp(builder: Builder, eqn: Any) -> Rebuild:
    """Keeps the user's rule and interprets all three functions: primal, forward, backward."""
    params, body = eqn.params, builder.body(eqn.params["call_jaxpr"])
    num_consts = params["num_consts"]

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], stream: Any) -> list[Any]:
        @jax.custom_vjp
        def primal(inner_stream: Any, *inner: Any) -> tuple[Any, ...]:
            return tuple(evaluate(body, inner, inner_stream))

        def forward(inner_stream: Any, *inner: Any) -> tuple[Any, Any]:
            jaxpr, consts = params["fwd_jaxpr_thunk"].call_wrapped(*[True] * (len(inner) - num_consts))
            out = evaluate(builder.graph(jaxpr, consts), inner[num_consts:], inner_stream)
            _, _, forwarded = params["out_trees"]()
            num_new = sum(index is None for index in forwarded)
            new = iter(out[:num_new])
            residuals = tuple(next(new) if index is None else inner[index] for index in forwarded)
            return tuple(out[num_new:]), (residuals, inner_stream, inner[:num_consts])

        def backward(saved: Any, cotangents: Any) -> tuple[Any, ...]:
            residuals, inner_stream, consts = saved
            shapes: list[Any] = []

            def flat_backward(*flat: Any) -> list[Any]:
                out = params["bwd"].call_wrapped(*flat)
                out = out[0] if isinstance(out, tuple) else out  # since jax 0.11 a pair: cotangents and what the rule logs
                shapes.extend(None if type(ct) is ad.Zero else ct for ct in out)
                return [ct for ct in out if type(ct) is not ad.Zero]

            closed = jax.make_jaxpr(flat_backward)(*residuals, *cotangents)
            real = iter(evaluate(builder.body(closed), [*residuals, *cotangents], inner_stream))
            return (None, *(None for _ in consts), *(None if shape is None else next(real) for shape in shapes))

        primal.defvjp(forward, backward)
        return list(primal(stream, *operands))

    return rebuild


def _custom_vmap(builder: Builder, eqn: Any) -> Rebuild:
    """Keeps the user's batching rule and interprets what it computes."""
    params, body = eqn.params, builder.body(eqn.params["call"])

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], stream: Any) -> list[Any]:
        @jax.custom_batching.custom_vmap
        def again(inner_stream: Any, inner: Any) -> tuple[Any, ...]:
            return tuple(evaluate(body, inner, inner_stream))

        @again.def_vmap
        def _(axis_size: int, batched: Any, inner_stream: Any, inner: Any) -> tuple[Any, Any]:
            batched_stream, inner_batched = batched
            # One stream for the whole batch, whose elements are told apart by their positions.
            inner_stream = jax.tree.map(lambda x, is_batched: x[0] if is_batched else x, inner_stream, batched_stream)
            batching: list[Any] = []

            def rule(*flat: Any) -> Any:
                args, in_batched = (jax.tree.unflatten(params["in_tree"], leaves) for leaves in (flat, inner_batched))
                out, out_batched = params["rule"](axis_size, list(in_batched), *args)
                batching.extend(jax.tree.leaves(out_batched))
                return jax.tree.leaves(out)

            graph = builder.body(jax.make_jaxpr(rule)(*inner))
            return tuple(evaluate(graph, inner, inner_stream)), tuple(batching)

        return list(again(stream, tuple(operands)))

    return rebuild


def _linear_call(builder: Builder, eqn: Any) -> Rebuild:
    """Keeps the user's transpose and interprets both directions."""
    params, body = eqn.params, builder.body(eqn.params["callee"])
    num_consts, split = params["num_callee_consts"], params["num_callee_consts"] + params["num_res"]

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], stream: Any) -> list[Any]:
        def forward(residuals: Any, linear: Any) -> tuple[Any, ...]:
            inner_stream, inner = residuals
            return tuple(evaluate(body, [*inner, *linear], inner_stream))

        def backward(residuals: Any, cotangents: Any) -> tuple[Any, ...]:
            inner_stream, inner = residuals
            transposed, consts = params["transpose_thunk"]()
            return tuple(evaluate(builder.body(transposed), [*consts, *inner[num_consts:], *cotangents], inner_stream))

        residuals = (stream, tuple(operands[:split]))
        return list(jax.custom_derivatives.linear_call(forward, backward, residuals, tuple(operands[split:])))

    return rebuild


def solve_body(builder: Builder, eqn: Any) -> Graph:
    """The solver as a graph of all operands, of which it reads its own constants and the right-hand side."""
    before = eqn.params["const_lengths"].matvec + eqn.params["const_lengths"].vecmat
    solver = builder.body(eqn.params["jaxprs"].solve)
    inputs = [Value(atom.aval) for atom in eqn.invars]
    own = eqn.params["const_lengths"].solve
    num_rhs = len(solver.inputs) - own
    inputs[before : before + own] = solver.inputs[:own]
    inputs[len(inputs) - num_rhs :] = solver.inputs[own:]
    return replace(solver, inputs=tuple(inputs))


def linear_solve(builder: Builder, eqn: Any) -> Rebuild:
    """Keeps implicit differentiation: the solvers are interpreted, the map itself stays linear in its argument for JAX to transpose."""
    jaxprs, lengths = eqn.params["jaxprs"], eqn.params["const_lengths"]
    ends = np.cumsum(lengths).tolist()
    has_aux = len(jaxprs.solve.out_avals) > len(jaxprs.matvec.out_avals)

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], stream: Any) -> list[Any]:
        matvec_consts, solve_consts = operands[: ends[0]], operands[ends[1] : ends[2]]
        transpose_consts, rhs = operands[ends[2] : ends[3]], tuple(operands[ends[3] :])

        def matvec(x: Any) -> tuple[Any, ...]:
            graph = builder.body(jaxprs.matvec)
            return tuple(evaluate(graph, [*matvec_consts, *x], stream, linear=graph.inputs[len(matvec_consts) :]))

        def solver(jaxpr: Any, consts: Sequence[Any]) -> Callable[..., Any]:
            def solve(_: Any, b: Any) -> Any:
                out = evaluate(builder.body(jaxpr), [*consts, *b], stream)
                return (tuple(out[: len(rhs)]), tuple(out[len(rhs) :])) if has_aux else tuple(out)

            return solve

        transpose_solve = None if jaxprs.transpose_solve is None else solver(jaxprs.transpose_solve, transpose_consts)
        forward = solver(jaxprs.solve, solve_consts)
        return jax.tree.leaves(jax.lax.custom_linear_solve(matvec, rhs, forward, transpose_solve, has_aux=has_aux))

    return rebuild


def high_body(builder: Builder, eqn: Any) -> Graph:
    """What a primitive of jax 0.12 that is an object with rules of its own (searchsorted, frexp, custom_root) computes, in plain ones."""
    expand = lambda *operands: eqn.primitive.to_lojax(*operands, **eqn.params)
    return builder.body(jax.make_jaxpr(expand)(*(atom.aval for atom in eqn.invars)))


def high_level(body: Graph, eqn: Any) -> Rebuild:
    """Interprets the primal; the derivative is the object's own rule at the operands, as plain JAX has it."""
    bind = lambda *operands: tuple(eqn.primitive.bind(*operands, **eqn.params))

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], stream: Any) -> list[Any]:
        @jax.custom_jvp
        def primal(inner_stream: Any, *inner: Any) -> tuple[Any, ...]:
            return tuple(evaluate(body, inner, inner_stream))

        @primal.defjvp
        def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
            return primal(*primals), jax.jvp(bind, primals[1:], tangents[1:])[1]

        return list(primal(stream, *operands))

    return rebuild


# primitive -> (parameter that holds the body, or its names by age, how to put it back; None where it is nothing but a call)
CALLS: dict[str, tuple[str, Callable[[Builder, Any], Rebuild] | None]] = {
    "jit": ("jaxpr", None),
    "pjit": ("jaxpr", None),
    "closed_call": ("call_jaxpr", None),
    "core_call": ("call_jaxpr", None),
    "call": ("call_jaxpr", None),
    "eval_jaxpr": ("call_jaxpr", None),
    "xla_metadata_call": ("jaxpr", None),
    "composite": ("jaxpr call_jaxpr", None),
    "remat_opt": ("fwd_jaxpr", None),
    "custom_partitioning": ("call", None),
    "remat2": ("jaxpr", _remat),
    "checkpoint": ("jaxpr", _remat),
    "custom_jvp_call": ("call_jaxpr", _custom_jvp),
    "custom_vjp_call": ("call_jaxpr", _custom_vjp),
    "custom_vmap_call": ("call", _custom_vmap),
    "linear_call": ("callee", _linear_call),
    "shard_map": ("jaxpr", _shard_map),
}

"""The one file that knows JAX's jaxprs: it turns a traced function into a Graph, whatever the JAX version calls things.

Written against jax 0.10.2. What changes between versions (parameter names, closed or open jaxprs, how a custom rule is kept)
is read here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax.extend import source_info_util
from jax.interpreters import ad

from trn_jax.errors import UnsupportedError
from trn_jax.graph.graph import Branch, Call, Constant, Graph, Node, Op, Scan, Value, While, last_uses

# Frames of these files are not the user's: a primitive's source line is the nearest one outside.
for _file in ("_compat.py", "emulate.py", "cast_report.py", "graph/run.py", "timing/trace.py"):
    source_info_util.register_exclusion(str(Path(__file__).parent / _file))

Evaluate = Callable[[Graph, Sequence[Any], Any], list[Any]]

REF_PRIMITIVES = frozenset({"new_ref", "get", "swap", "addupdate", "ref_get", "ref_set", "freeze", "empty_ref"})


def is_dynamic(leaf: Any) -> bool:
    """Whether an argument leaf is traced (it has a shape and a dtype) or stays a static Python value."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


class Traced:
    """A function traced at given arguments: its Graph, the traced operands and how to rebuild the output."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        leaves, treedef = jax.tree.flatten((args, kwargs))
        dynamic = [is_dynamic(leaf) for leaf in leaves]
        self.operands = [leaf for leaf, is_array in zip(leaves, dynamic, strict=True) if is_array]

        def flat_fn(*arrays: Any) -> Any:
            remaining = iter(arrays)
            full = [next(remaining) if is_array else leaf for leaf, is_array in zip(leaves, dynamic, strict=True)]
            full_args, full_kwargs = jax.tree.unflatten(treedef, full)
            return fn(*full_args, **full_kwargs)

        closed, shape = jax.make_jaxpr(flat_fn, return_shape=True)(*self.operands)
        self.graph = to_graph(closed, getattr(fn, "__name__", ""))
        self.out_tree = jax.tree.structure(shape)


def trace_graph(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Traced:
    """Traces `fn`; array-like leaves (anything with shape and dtype) are inputs, other leaves are static."""
    return Traced(fn, args, kwargs)


def to_graph(closed_jaxpr: Any, name: str = "") -> Graph:
    """A Graph of a closed jaxpr; `name` stands for the source where no line of the user's made an operation."""
    return _Builder(name).graph(closed_jaxpr.jaxpr, closed_jaxpr.consts)


class _Builder:
    """Converts jaxprs; the same jaxpr object met twice (layers that share a traced function) is converted once."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed: dict[int, tuple[Any, Graph]] = {}

    def closed(self, closed_jaxpr: Any) -> Graph:
        key = id(closed_jaxpr)
        if key not in self._closed:
            self._closed[key] = (closed_jaxpr, self.graph(closed_jaxpr.jaxpr, closed_jaxpr.consts))
        return self._closed[key][1]

    def open(self, jaxpr: Any) -> Graph:
        if hasattr(jaxpr, "jaxpr"):
            return self.closed(jaxpr)
        key = id(jaxpr)
        if key not in self._closed:
            self._closed[key] = (jaxpr, self.graph(jaxpr, ()))
        return self._closed[key][1]

    def graph(self, jaxpr: Any, consts: Sequence[Any]) -> Graph:
        values: dict[Any, Value] = {}

        def fresh(var: Any) -> Value:
            value = Value(var.aval)
            if not isinstance(var, jex_core.DropVar):
                values[var] = value
            return value

        def read(atom: Any) -> Value:
            return Constant(atom.aval, atom.val) if isinstance(atom, jex_core.Literal) else values[atom]

        constants = tuple((fresh(var), const) for var, const in zip(jaxpr.constvars, consts, strict=True))
        inputs = tuple(fresh(var) for var in jaxpr.invars)
        nodes: list[Node] = []
        for index, eqn in enumerate(jaxpr.eqns):
            read_inputs = tuple(read(atom) for atom in eqn.invars)
            fields = {
                "name": eqn.primitive.name,
                "index": index,
                "inputs": read_inputs,
                "outputs": tuple(fresh(var) for var in eqn.outvars),
                "source": source_info_util.summarize(eqn.source_info) or self._name,
                "scope": str(eqn.source_info.name_stack),
            }
            nodes.append(self.node(eqn, fields))
        outputs = tuple(read(atom) for atom in jaxpr.outvars)
        return Graph(inputs=inputs, constants=constants, nodes=tuple(nodes), outputs=outputs, last_use=last_uses(nodes, outputs))

    def node(self, eqn: Any, fields: dict[str, Any]) -> Node:
        name, params = eqn.primitive.name, eqn.params
        if name in REF_PRIMITIVES:
            raise UnsupportedError(
                f"{name!r} at {fields['source']} reads or writes a mutable reference (jax.Ref, or a Flax NNX module changed inside the "
                "function). trn_jax takes pure functions: split the module outside (graphdef, state = nnx.split(model)), merge it inside, "
                "and return the changed state."
            )
        if name == "scan":
            return Scan(
                **fields,
                body=self.closed(params["jaxpr"]),
                num_consts=params["num_consts"],
                num_carry=params["num_carry"],
                length=params["length"],
                reverse=params["reverse"],
                unroll=params["unroll"],
            )
        if name == "while":
            return While(
                **fields,
                condition=self.closed(params["cond_jaxpr"]),
                body=self.closed(params["body_jaxpr"]),
                condition_num_consts=params["cond_nconsts"],
                body_num_consts=params["body_nconsts"],
            )
        if name == "cond":
            return Branch(**fields, branches=tuple(self.closed(branch) for branch in params["branches"]))
        if name in _CALLS:
            key, rebuild = _CALLS[name]
            return Call(**fields, body=self.open(params[key]), rebuild=rebuild(self, eqn), params=params)
        if name not in _OPAQUE and any(True for _ in jex_core.jaxprs_in_params(params)) and "jaxpr" in params:
            raise UnsupportedError(
                f"{name!r} at {fields['source']} holds a sub-program that trn_jax does not know how to run. "
                "Call the underlying JAX function outside of it, or register a rule with trn_jax.register_rule."
            )
        return Op(**fields, params=params, bind=_binder(eqn))


_OPAQUE = frozenset({"scatter", "reduce", "reduce_window", "sort", "scatter_mul", "select_and_scatter"})


_COMBINING_SCATTERS = frozenset(f"scatter-{kind}" for kind in ("add", "sub", "mul", "min", "max"))


def _scatter_anew(name: str, params: Mapping[str, Any], *operands: Any) -> Any:
    """A scatter in another dtype than it was traced for: its parameters hold the update as a jaxpr of the old dtype."""
    kept = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")
    return getattr(jax.lax, name.replace("-", "_"))(*operands, **{key: params[key] for key in kept})


def _binder(eqn: Any) -> Callable[..., list[Any]]:
    """Evaluates one equation as JAX would, with parameters changed by keyword."""
    primitive, params, context = eqn.primitive, eqn.params, eqn.ctx
    traced_dtype = eqn.invars[0].aval.dtype if primitive.name in _COMBINING_SCATTERS else None

    def bind(*operands: Any, **changed: Any) -> list[Any]:
        with context.manager:
            if traced_dtype is not None and operands[0].dtype != traced_dtype:
                return [_scatter_anew(primitive.name, params, *operands)]
            out = primitive.bind(*operands, **primitive.get_bind_params({**params, **changed}))
        return list(out) if primitive.multiple_results else [out]

    return bind


def _inline(builder: _Builder, eqn: Any) -> Callable[..., list[Any]]:
    """jit and its kin: the body runs in place; XLA inlines calls anyway."""
    body = builder.open(eqn.params["jaxpr"] if "jaxpr" in eqn.params else eqn.params["call_jaxpr"])
    return lambda evaluate, operands, seed: evaluate(body, operands, seed)


def _remat(builder: _Builder, eqn: Any) -> Callable[..., list[Any]]:
    params, body = eqn.params, builder.open(eqn.params["jaxpr"])

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], seed: Any) -> list[Any]:
        again = jax.checkpoint(
            lambda inner_seed, *inner: evaluate(body, inner, inner_seed), prevent_cse=params["prevent_cse"], policy=params["policy"]
        )
        return again(seed, *operands)

    return rebuild


def _shard_map(builder: _Builder, eqn: Any) -> Callable[..., list[Any]]:
    params, body = eqn.params, builder.open(eqn.params["jaxpr"])
    mesh = params["mesh"]
    manual = frozenset(params.get("manual_axes", params.get("newly_manual_axes", frozenset(mesh.axis_names))))

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], seed: Any) -> list[Any]:
        seeds = () if seed is None else (seed,)

        def local(*inner: Any) -> tuple[Any, ...]:
            return tuple(evaluate(body, inner[len(seeds) :], inner[0] if seeds else None))

        mapped = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(*(jax.P() for _ in seeds), *params["in_specs"]),
            out_specs=tuple(params["out_specs"]),
            axis_names=manual,
            check_vma=params["check_vma"],
        )
        return list(mapped(*seeds, *operands))

    return rebuild


def _custom_jvp(builder: _Builder, eqn: Any) -> Callable[..., list[Any]]:
    """Keeps the user's rule: its primal part is interpreted, its part that is linear in the tangents is bound unchanged.

    JAX transposes that part, so nothing that is not linear (a rounding) may be put into it.
    """
    params, body = eqn.params, builder.open(eqn.params["call_jaxpr"])
    num_consts, num_outputs = params["num_consts"], len(eqn.outvars)

    def rebuild(evaluate: Any, operands: Sequence[Any], seed: Any) -> list[Any]:
        consts, args = operands[:num_consts], operands[num_consts:]
        seeds = () if seed is None else (seed,)

        @jax.custom_jvp
        def primal(inner_seeds: Any, *inner: Any) -> tuple[Any, ...]:
            return tuple(evaluate(body, inner, *(inner_seeds or (None,))))

        @primal.defjvp
        def rule(primals: Any, tangents: Any) -> tuple[Any, Any]:
            (inner_seeds, *values), (_, *directions) = primals, tangents
            jaxpr, jaxpr_consts, zero_outputs = params["jvp_jaxpr_fun"].call_wrapped(*[False] * len(args))
            graph = builder.graph(jaxpr, jaxpr_consts)
            linear = graph.inputs[len(args) :]
            real = values[num_consts:]
            directions = [ad.instantiate_zeros(t) for t in directions[num_consts:]]
            out = evaluate(graph, [*real, *directions], *(inner_seeds or (None,)), linear=linear)
            values_out, nonzero = out[:num_outputs], iter(out[num_outputs:])
            tangents_out = [_zero_tangent(v) if zero else next(nonzero) for v, zero in zip(values_out, zero_outputs, strict=True)]
            return tuple(values_out), tuple(tangents_out)

        return list(primal(seeds, *consts, *args))

    return rebuild


def _zero_tangent(value: Any) -> Any:
    aval = jax.typeof(value).to_tangent_aval()
    return np.zeros(aval.shape, aval.dtype) if aval.dtype == jax.dtypes.float0 else jnp.zeros(aval.shape, aval.dtype)


def _custom_vjp(builder: _Builder, eqn: Any) -> Callable[..., list[Any]]:
    """Keeps the user's rule and interprets all three functions: primal, forward, backward."""
    params, body = eqn.params, builder.open(eqn.params["call_jaxpr"])
    num_consts = params["num_consts"]

    def rebuild(evaluate: Evaluate, operands: Sequence[Any], seed: Any) -> list[Any]:
        seeds = () if seed is None else (seed,)

        @jax.custom_vjp
        def primal(inner_seeds: Any, *inner: Any) -> tuple[Any, ...]:
            return tuple(evaluate(body, inner, *(inner_seeds or (None,))))

        def forward(inner_seeds: Any, *inner: Any) -> tuple[Any, Any]:
            jaxpr, consts = params["fwd_jaxpr_thunk"].call_wrapped(*[True] * (len(inner) - num_consts))
            out = evaluate(builder.graph(jaxpr, consts), inner[num_consts:], *(inner_seeds or (None,)))
            _, _, forwarded = params["out_trees"]()
            num_new = sum(index is None for index in forwarded)
            new = iter(out[:num_new])
            residuals = tuple(next(new) if index is None else inner[index] for index in forwarded)
            return tuple(out[num_new:]), (residuals, inner_seeds, inner[:num_consts])

        def backward(saved: Any, cotangents: Any) -> tuple[Any, ...]:
            residuals, inner_seeds, consts = saved
            shapes: list[Any] = []

            def flat_backward(*flat: Any) -> list[Any]:
                out = params["bwd"].call_wrapped(*flat)
                shapes.extend(None if type(ct) is ad.Zero else ct for ct in out)
                return [ct for ct in out if type(ct) is not ad.Zero]

            closed = jax.make_jaxpr(flat_backward)(*residuals, *cotangents)
            real = iter(evaluate(to_graph(closed), [*residuals, *cotangents], *(inner_seeds or (None,))))
            return (None, *(None for _ in consts), *(None if shape is None else next(real) for shape in shapes))

        primal.defvjp(forward, backward)
        return list(primal(seeds, *operands))

    return rebuild


# primitive -> (parameter that holds the body, how to put the transformation back around an interpreted body)
_CALLS: dict[str, tuple[str, Any]] = {
    "jit": ("jaxpr", _inline),
    "pjit": ("jaxpr", _inline),
    "closed_call": ("call_jaxpr", _inline),
    "core_call": ("call_jaxpr", _inline),
    "remat2": ("jaxpr", _remat),
    "checkpoint": ("jaxpr", _remat),
    "custom_jvp_call": ("call_jaxpr", _custom_jvp),
    "custom_vjp_call": ("call_jaxpr", _custom_vjp),
    "shard_map": ("jaxpr", _shard_map),
}

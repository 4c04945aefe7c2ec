"""The one place that knows JAX's jaxprs: it turns a traced function into a Graph, whatever the JAX version calls things.

Written against jax 0.10.2 (the last for Python 3.11) and 0.12. What changes between versions (parameter names, closed or open
jaxprs) is read here and, for primitives that call another function, in `_compat_calls`; nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.extend.core as jex_core
from jax.extend import source_info_util

from trn_jax._compat_calls import CALLS, high_body, high_level, linear_solve, ranks, solve_body
from trn_jax.errors import UnsupportedError
from trn_jax.graph.arguments import check_arguments, check_values
from trn_jax.graph.graph import Branch, Call, Constant, Graph, Node, Op, Scan, Value, While, last_uses
from trn_jax.graph.numerics import RANDOM_SAMPLERS, is_label
from trn_jax.graph.rules import RULES
from trn_jax.numerics.rounding import ROUNDINGS

# Frames of these files are not the user's: a primitive's source line is the nearest one outside.
_HERE, _JAX = Path(__file__).parent, Path(jax.__file__).parent
for _file in (
    "_compat.py",
    "_compat_calls.py",
    "emulate.py",
    "cast_report.py",
    "graph/run.py",
    "timing/trace.py",
    "numerics/rounding.py",
    "observe/",
):
    source_info_util.register_exclusion(str(_HERE / _file))

# Whether functions are traced to be described (time, reports) and not to be run; part of the key of JAX's own caches.
_describing = jax.make_user_context(False)

_MUTABLE = (
    "reads or writes a mutable reference (jax.Ref, or a Flax NNX module changed inside the function). trn_jax takes pure functions: split "
    "the module outside (graphdef, state = nnx.split(model)), merge it inside, and return the changed state."
)
_KERNEL = (
    "is a kernel or library call for another device, whose inside is not JAX. Give the plain JAX function it stands for, or register a "
    "rule with trn_jax.register_rule that says what it costs."
)
_FORWARD = "is a forward-mode derivative of a jax.custom_vjp, which JAX itself cannot run. Use reverse mode (jax.grad), or jax.custom_jvp."

# primitive -> why it is refused
REFUSED = {
    **dict.fromkeys("new_ref empty_ref get swap addupdate freeze free_ref accum_grad_in_ref run_state".split(), _MUTABLE),
    **dict.fromkeys("pallas_call ffi_call call_exported scaled_matmul_wrapper".split(), _KERNEL),
    "custom_lin": _FORWARD,
}

# primitives that become the nodes of a Graph that hold other graphs
EXPANDED = frozenset({"scan", "while", "cond", "custom_linear_solve", "call_hi_primitive", *CALLS})


def is_dynamic(leaf: Any) -> bool:
    """Whether an argument leaf is traced (it has a shape and a dtype) or stays a static Python value."""
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype")


def describing() -> bool:
    """Whether what is traced now is only described, so that an emulated function in it stands for the plain one."""
    return _describing.value


def _is_nnx_object(x: Any) -> bool:
    """Whether `x` is a Flax NNX module, optimizer or the like; Flax itself is not imported."""
    return any(kind.__module__.startswith("flax.nnx") and kind.__name__ in ("Module", "Pytree", "Object") for kind in type(x).__mro__)


def _nnx_objects(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree, is_leaf=_is_nnx_object) if _is_nnx_object(leaf)]


def _check_unchanged(modules: list[tuple[Any, list[Any]]], returned: set[int]) -> None:
    """Refuses a function that changed an NNX object it was given and does not return: the change would be lost."""
    for module, before in modules:
        after = jax.tree.leaves(module)
        same = len(after) == len(before) and all(a is b for a, b in zip(after, before, strict=True))
        if not same and id(module) not in returned:
            raise UnsupportedError(
                f"The function changes the {type(module).__name__} it is given (a parameter, a statistic, an optimizer's state). trn_jax "
                "takes pure functions, and the change would be lost: split outside (graphdef, state = nnx.split(module)), merge inside, "
                "and return nnx.state(module), or return the module itself."
            )


class Traced:
    """A function traced at given arguments: its Graph, the traced operands and how to rebuild the output."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]):
        check_arguments(args, kwargs)
        leaves, treedef = jax.tree.flatten((args, kwargs))
        dynamic = [is_dynamic(leaf) for leaf in leaves]
        self.operands = [leaf for leaf, is_array in zip(leaves, dynamic, strict=True) if is_array]

        def flat_fn(*arrays: Any) -> Any:
            remaining = iter(arrays)
            full = [next(remaining) if is_array else leaf for leaf, is_array in zip(leaves, dynamic, strict=True)]
            full_args, full_kwargs = jax.tree.unflatten(treedef, full)
            modules = [(module, jax.tree.leaves(module)) for module in _nnx_objects((full_args, full_kwargs))]
            out = fn(*full_args, **full_kwargs)
            _check_unchanged(modules, {id(module) for module in _nnx_objects(out)})
            return out

        closed, shape = jax.make_jaxpr(flat_fn, return_shape=True)(*self.operands)
        self.graph = to_graph(closed, getattr(fn, "__name__", ""))
        self.out_tree = jax.tree.structure(shape)


def trace_graph(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Traced:
    """Traces `fn` to describe it; array-like leaves (anything with shape and dtype) are inputs, other leaves are static."""
    with _describing(True):
        return Traced(fn, args, kwargs)


def trace_values(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Traced:
    """Traces `fn` to run it."""
    check_values(args, kwargs)
    return Traced(fn, args, kwargs)


def call_labelled(label: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`fn(*args, **kwargs)` as one call that has this name in the Graph; derivatives of it keep the name."""
    leaves, treedef = jax.tree.flatten((args, kwargs))
    traced = [leaf if is_dynamic(leaf) else None for leaf in leaves]

    def labelled(arrays: Sequence[Any]) -> Any:
        full = [leaf if array is None else array for leaf, array in zip(leaves, arrays, strict=True)]
        full_args, full_kwargs = jax.tree.unflatten(treedef, full)
        return fn(*full_args, **full_kwargs)

    labelled.__name__ = label
    return jax.jit(labelled)(traced)


def to_graph(closed_jaxpr: Any, name: str = "") -> Graph:
    """A Graph of a closed jaxpr; `name` stands for the source where no line of the user's made an operation."""
    return Builder(name).graph(closed_jaxpr.jaxpr, closed_jaxpr.consts)


class Builder:
    """Converts jaxprs; the same jaxpr object met twice (layers that share a traced function) is converted once.

    JAX forgets who called a custom rule's function, so what it holds has the source of the call. To describe a program, such a
    function is converted once for every line that calls it.
    """

    def __init__(self, name: str) -> None:
        self._caller = name
        self._backward = False
        self._met: dict[tuple[int, str, bool], tuple[Any, Graph]] = {}
        self._sources: dict[Any, str] = {}  # traceback -> user's line; layers that repeat have equal tracebacks

    def body(self, jaxpr: Any) -> Graph:
        """The graph of a jaxpr in an equation's parameters, closed or open."""
        key = (id(jaxpr), self._caller if describing() else "", self._backward)
        if key not in self._met:
            closed = hasattr(jaxpr, "jaxpr")
            self._met[key] = (jaxpr, self.graph(jaxpr.jaxpr, jaxpr.consts) if closed else self.graph(jaxpr, ()))
        return self._met[key][1]

    def _source(self, info: Any) -> str:
        if info.traceback not in self._sources:
            self._sources[info.traceback] = source_info_util.summarize(info)
        return self._sources[info.traceback]

    def graph(self, jaxpr: Any, consts: Sequence[Any]) -> Graph:
        values: dict[Any, Value] = {}
        if len(jaxpr.constvars) < len(consts):  # since jax 0.12 constants without a value are leading inputs
            jaxpr = jaxpr.with_consts(consts)

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
        # Values of the forward pass, and the same transposed. JAX multiplies with the cotangent first; only a rule that a user wrote
        # has such a value there and something else second.
        saved = set() if self._backward else {*jaxpr.constvars, *jaxpr.invars}
        for index, eqn in enumerate(jaxpr.eqns):
            read_inputs = tuple(read(atom) for atom in eqn.invars)
            fields = {
                "name": eqn.primitive.name,
                "index": index,
                "inputs": read_inputs,
                "outputs": tuple(fresh(var) for var in eqn.outvars),
                "source": self._source(eqn.source_info) or self._caller,
                "scope": str(eqn.source_info.name_stack),
            }
            backward = _is_backward(fields["scope"], self._backward)
            known = [not isinstance(atom, jex_core.Literal) and atom in saved for atom in eqn.invars]
            if not backward or (eqn.primitive.name in _RENAMES and known[0]):
                saved.update(eqn.outvars)
            fields["cotangent"] = int(known[:2] == [True, False]) if backward else None
            outside, self._caller, self._backward = (self._caller, self._backward), fields["source"], backward
            nodes.append(self.node(eqn, fields))
            self._caller, self._backward = outside
        outputs = tuple(read(atom) for atom in jaxpr.outvars)
        return Graph(inputs=inputs, constants=constants, nodes=tuple(nodes), outputs=outputs, last_use=last_uses(nodes, outputs))

    def node(self, eqn: Any, fields: dict[str, Any]) -> Node:
        name, params = eqn.primitive.name, eqn.params
        if name in REFUSED and name not in RULES:
            raise UnsupportedError(f"{name!r} at {fields['source']} {REFUSED[name]}")
        if name == "scan":
            num_consts, num_carry = _scan_counts(params)
            return Scan(
                **fields,
                body=self.body(params["jaxpr"]),
                num_consts=num_consts,
                num_carry=num_carry,
                length=params["length"],
                reverse=params["reverse"],
                unroll=params["unroll"],
            )
        if name == "while":
            return While(
                **fields,
                condition=self.body(params["cond_jaxpr"]),
                body=self.body(params["body_jaxpr"]),
                condition_num_consts=params["cond_nconsts"],
                body_num_consts=params["body_nconsts"],
            )
        if name == "cond":
            branches = tuple(self.body(branch) for branch in params["branches"])
            return Branch(**fields, branches=branches, platforms=params.get("branches_platforms"))
        if name == "custom_linear_solve":
            return Call(**fields, body=solve_body(self, eqn), rebuild=linear_solve(self, eqn), params=params)
        if name == "call_hi_primitive":
            has_derivative = any(value.is_float for value in fields["outputs"])
            body = high_body(self, eqn)
            return Call(**fields, body=body, rebuild=high_level(body, eqn) if has_derivative else None, params=params)
        if name == "jit" and params["name"] in ROUNDINGS and _is_made_in(eqn, _HERE):
            return Op(**{**fields, "name": "round_to"}, params={"fmt": ROUNDINGS[params["name"]]}, bind=_binder(eqn))
        if name in CALLS:
            keys, rebuild = CALLS[name]
            key = next(key for key in keys.split() if key in params)
            known, body = _known_as(params.get("name", ""), eqn), self.body(params[key])
            again = rebuild and rebuild(self, eqn)
            return Call(**fields, body=body, rebuild=again, params=params, known_as=known, ranks=ranks(name, params))
        if name not in RULES and any(True for _ in jex_core.jaxprs_in_params(params)) and "jaxpr" in params:
            raise UnsupportedError(
                f"{name!r} at {fields['source']} holds a sub-program that trn_jax does not know how to run. "
                "Call the underlying JAX function outside of it, or register a rule with trn_jax.register_rule."
            )
        return Op(**fields, params=params, bind=_binder(eqn))


_RENAMES = frozenset({"transpose", "reshape", "squeeze", "expand_dims", "convert_element_type", "broadcast_in_dim"})


def _is_backward(scope: str, outside: bool) -> bool:
    """Whether an equation in this scope was made by transposing; what remat computes again was not."""
    return (outside or "transpose(" in scope) and "rematted_computation" not in scope


def _scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """How many operands of a scan are constants and how many are carried; since jax 0.11 a tree of operands says so."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    consts, carry, _ = params["ft_in"].unpack()
    return len(consts), len(carry)


def _is_made_in(eqn: Any, package: Path) -> bool:
    """Whether a jitted function is defined in a package, and not one of the user's that has the same name."""
    return str(package) in str(eqn.params["jaxpr"].jaxpr.debug_info.func_src_info)


def _known_as(name: str, eqn: Any) -> str:
    """The name of a called function if `Numerics.inside` has something to say about it."""
    return name if name in RANDOM_SAMPLERS and _is_made_in(eqn, _JAX) or is_label(name) else ""


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

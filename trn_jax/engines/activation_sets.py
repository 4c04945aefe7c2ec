"""Which table of the Scalar Engine a function needs: its functions are grouped in sets, and one set is loaded at a time.

exp, log     one set: no load between them          exp, then gelu     two sets: a load in between          copy, relu, square     none

Basis: documented that there are sets, and the four names that AWS prints; which other functions are in which set is unpublished and
assumed: functions made of the same elementary one share its set, and a function of unknown name is a set of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

_NAMES = 'documented: AWS Neuron docs, NEFF files, activation_function_sets: "'


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionSet:
    """Functions that share one table, by the names of rules and kernels. `basis` is that of the set; its documented members come first."""

    functions: tuple[str, ...]
    basis: str


SETS: dict[str, FunctionSet] = {
    "exp_and_log": FunctionSet(
        functions=tuple("exp log exp2 log2 expm1 log1p softplus sinh cosh asinh acosh atanh".split()),
        basis=_NAMES + 'natural_log_exp_and_others"; assumed beyond exp and log',
    ),
    "gelu": FunctionSet(
        functions=tuple("gelu gelu_apprx_tanh tanh erf erfc erf_inv".split()),
        basis=_NAMES + 'gelu_and_others"; assumed: the tanh and erf that gelu is made of',
    ),
    "rsqrt": FunctionSet(functions=("rsqrt",), basis=_NAMES + 'reciprocal_sqrt_and_small"'),
    "reciprocal": FunctionSet(functions=("reciprocal",), basis=_NAMES + 'reciprocal_and_small"'),
    "sqrt": FunctionSet(functions=("sqrt", "cbrt"), basis="assumed: roots"),
    "sigmoid": FunctionSet(functions=("logistic", "sigmoid", "silu", "mish"), basis="assumed: products with a sigmoid"),
    "trigonometric": FunctionSet(functions=tuple("sin cos tan asin acos atan atan2 arctan".split()), basis="assumed"),
    "special": FunctionSet(functions=tuple("lgamma digamma bessel_i0e bessel_i1e".split()), basis="assumed"),
}

# What the engine does with its multiplier and comparisons alone, whatever table is loaded. Basis: assumed (the names of sets end in "and
# small" and "and others", so simple functions seem to be in every one of them).
NO_TABLE = frozenset("copy cast evacuate identity square relu abs sign negative add subtract multiply divide maximum minimum".split())

_SET_OF = {function: name for name, members in SETS.items() for function in members.functions}


def set_of(function: str) -> str:
    """The set that an instruction's function needs, "" for none; of a fused one, as "multiply+exp", that of the part that has one."""
    return next((_SET_OF.get(part, part) for part in function.split("+") if part and part not in NO_TABLE), "")

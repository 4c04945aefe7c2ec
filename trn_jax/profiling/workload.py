"""A workload by name: a reference model, a matrix product of given sizes, or a function of the user's own module."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from trn_jax.errors import ProgramError, TrnJaxError, UnsupportedError, did_you_mean
from trn_jax.profiling.shapes import read_shape
from trn_jax.timing.program import Program
from trn_jax.timing.trace import trace

MATMUL = "matmul"
FORMS = "matmul:4096x4096x4096:bf16, module:function with shapes such as 128x512:bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A function and the shapes of its arguments; of a reference model also its number of layers and its mode."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    layers: int = 0
    mode: str = ""

    def program(self) -> Program:
        """The traced program.

        Raises:
            ProgramError: The function does not take these shapes, or cannot be timed.
        """
        try:
            return trace(self.function, *self.args)
        except TrnJaxError:
            raise
        except (TypeError, ValueError) as error:
            shapes = ", ".join(map(str, self.args)) or "no arguments"
            raise ProgramError(f"{self.name} cannot be traced with {shapes}: {type(error).__name__}: {error}") from error


def find_workload(text: str, shapes: Sequence[str] = (), **options: Any) -> Workload:
    """A workload from the words of a command line.

    Args:
        text: A reference model ("gpt2", "llama-3-8b", "llama-3.1-405b", "resnet50"), "matmul:MxKxN:dtype", or "module:function".
        shapes: Of the arguments of a function.
        **options: `mode`, `batch`, `tokens` and `scan_layers` of a reference model; None where not given.

    Raises:
        ProgramError: No such workload, module or function, or shapes that are none.
        ModelError: A reference model has no such mode or size.
        UnsupportedError: A reference model whose packages are not installed.
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    head, colon, rest = text.partition(":")
    if not colon and head != MATMUL:
        return _reference(text, shapes, given)
    if given:
        name = next(iter(given)).replace("_", "-")
        raise ProgramError(f"--{name} is for the reference models; {text!r} takes its sizes from shapes. Leave it out.")
    return _matmul(text, rest, shapes) if head == MATMUL else _function(text, head, rest, shapes)


def _reference(name: str, shapes: Sequence[str], options: dict[str, Any]) -> Workload:
    try:
        from trn_jax.models.reference import REFERENCES, reference
    except ModuleNotFoundError as error:
        raise UnsupportedError(f"Reference models need {error.name}, which is not installed: pip install 'trn_jax[train]'.") from None
    if name not in REFERENCES:
        raise ProgramError(f"There is no workload {name!r}. {did_you_mean(name, REFERENCES)} Or give {FORMS}.")
    if shapes:
        raise ProgramError(f"{name} has its own shapes, but {' '.join(shapes)} was given. Change its sizes with --batch and --tokens.")
    function, args = reference(name, **options)
    config, mode = REFERENCES[name].config, options.get("mode") or "forward"
    return Workload(name=f"{name} {mode}", function=function, args=args, layers=config.n_layers if config else 0, mode=mode)


def _matmul(text: str, rest: str, shapes: Sequence[str]) -> Workload:
    sizes = read_shape(rest, "bf16") if rest and not shapes else None
    if sizes is None or len(sizes.shape) != 3:
        raise ProgramError(f"{text!r} is no product. Write M, K and N and a dtype: matmul:4096x4096x4096:bf16.")
    m, k, n = sizes.shape
    operands = (sizes.update(shape=(m, k)), sizes.update(shape=(k, n)))
    return Workload(name=text, function=jnp.matmul, args=operands)


def _function(text: str, module: str, name: str, shapes: Sequence[str]) -> Workload:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ProgramError(
            f"{text!r}: there is no module {error.name!r}. Give a module that can be imported from here, as in package.module:function."
        ) from None
    except Exception as error:
        raise ProgramError(f"{text!r}: importing {module} failed with {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise ProgramError(f"{text!r}: {module} has no {name!r}. {did_you_mean(part, _callables(found))}")
        found = getattr(found, part)
    if not callable(found):
        raise ProgramError(f"{text!r} is a {type(found).__name__}, not a function.")
    args = tuple(map(read_shape, shapes))
    _check_count(text, found, args)
    return Workload(name=text, function=found, args=args)


def _check_count(text: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Says which arguments a function has, where the shapes are too few or too many."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args)
    except TypeError:
        names = " ".join(signature.parameters) or "none"
        raise ProgramError(
            f"{text!r} takes {names}, and {len(args)} shapes were given. Give one for each argument, as in 128x512:bf16 4:int32."
        ) from None


def _callables(found: Any) -> list[str]:
    return [name for name, value in vars(found).items() if callable(value) and not name.startswith("_")]

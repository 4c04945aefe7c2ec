"""A model as a pure function of a plain dictionary of weights, which is what a training step carries, donates and saves.

`apply, params = split_model(GPT(config))`, then `logits = apply(params, tokens)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import nnx

Params = dict[str, Any]
Apply = Callable[..., Any]


def split_model(model: nnx.Module, method: str = "__call__") -> tuple[Apply, Params]:
    """Takes a model apart.

    Args:
        model: Any NNX module whose only state is `nnx.Param`; an abstract one (`nnx.eval_shape`) gives shapes for weights.
        method: Which of its methods `apply` calls.

    Returns:
        `apply(params, *args, **kwargs)`, pure in all its arguments, and the weights as nested dictionaries of arrays.
    """
    graphdef, state = nnx.split(model, nnx.Param)

    def apply(params: Params, *args: Any, **kwargs: Any) -> Any:
        return getattr(nnx.merge(graphdef, params), method)(*args, **kwargs)

    return apply, nnx.to_pure_dict(state)

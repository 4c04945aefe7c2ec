"""Precision recipes: in which format weights are kept, read and multiplied, and how writes round. A table.

A bf16 weight w moves only by multiples of 2^-8 w. Updates are usually far smaller, so writing them to the nearest bf16 loses them
(`bf16-rne`); rounding stochastically keeps them on average (`bf16-sr`), and an fp32 master copy keeps them exactly (`bf16-master`,
`fp16`, `fp8`).
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from trn_jax.errors import TrainingError, did_you_mean
from trn_jax.graph.numerics import AutoCast
from trn_jax.training.loss_scale import LossScaling

Precision = Literal["fp32", "bf16", "bf16-sr", "bf16-rne", "bf16-master", "fp16", "fp8"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One row of the table.

    Attributes:
        kept_dtype: Dtype of the weights that the optimizer updates and checkpoints hold.
        read_dtype: Dtype of the weights that the forward pass reads; gradients come back in it.
        compute_dtype: Dtype of the activations.
        autocast: What the Tensor Engine's operands are cast to; None leaves their dtype.
        rounding: How a value is rounded when it is written in a narrower format: "nearest" or "stochastic" (seeded by the step).
        loss_scaling: How the loss is scaled; None does not.
        summary: What it stands for.
    """

    kept_dtype: str = "float32"
    read_dtype: str = "float32"
    compute_dtype: str = "float32"
    autocast: AutoCast | None = None
    rounding: Literal["nearest", "stochastic"] = "nearest"
    loss_scaling: LossScaling | None = None
    summary: str


RECIPES: dict[str, Recipe] = {
    "fp32": Recipe(summary="everything in fp32"),
    "bf16": Recipe(autocast=AutoCast("matmult", "bf16"), summary="fp32 weights and activations, matrix operands cast to bf16"),
    "bf16-sr": Recipe(
        kept_dtype="bfloat16",
        read_dtype="bfloat16",
        compute_dtype="bfloat16",
        rounding="stochastic",
        summary="bf16 weights, written with stochastic rounding",
    ),
    "bf16-rne": Recipe(
        kept_dtype="bfloat16",
        read_dtype="bfloat16",
        compute_dtype="bfloat16",
        summary="bf16 weights, written to nearest, so that small updates are lost",
    ),
    "bf16-master": Recipe(read_dtype="bfloat16", compute_dtype="bfloat16", summary="bf16 weights read from an fp32 master copy"),
    "fp16": Recipe(
        read_dtype="float16",
        compute_dtype="float16",
        loss_scaling=LossScaling(),
        summary="fp16 weights read from an fp32 master copy, with a dynamic loss scale",
    ),
    "fp8": Recipe(
        read_dtype="bfloat16",
        compute_dtype="bfloat16",
        autocast=AutoCast("matmult", "fp8_e4m3", scaling="tensor", backward="fp8_e5m2"),
        summary="as bf16-master, with matrix operands in fp8: E4M3, cotangents E5M2, one scale for each operand",
    ),
}


def get_recipe(name: str) -> Recipe:
    """The recipe called `name`.

    Raises:
        TrainingError: There is none.
    """
    if name not in RECIPES:
        raise TrainingError(f"No precision recipe is called {name!r}. " + did_you_mean(name, RECIPES))
    return RECIPES[name]

"""Models of the experiments: a GPT in Flax NNX and what it is made of. Needs the `train` extra."""

from trn_jax.models.attention import MASKED_SCORE, mask_scores
from trn_jax.models.config import GPTConfig
from trn_jax.models.functional import split_model
from trn_jax.models.gpt import GPT
from trn_jax.models.heads import HeadShard, shard_heads
from trn_jax.models.layers import stack_blocks, unstack_blocks
from trn_jax.models.loss import IGNORED_TARGET, cross_entropy

__all__ = [
    "GPT",
    "IGNORED_TARGET",
    "MASKED_SCORE",
    "GPTConfig",
    "HeadShard",
    "cross_entropy",
    "mask_scores",
    "shard_heads",
    "split_model",
    "stack_blocks",
    "unstack_blocks",
]

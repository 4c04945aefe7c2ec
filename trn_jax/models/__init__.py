"""Models of the experiments and the reference models: a GPT in Flax NNX and what it is made of, ResNet-50. Needs the `train` extra."""

from trn_jax.models.attention import MASKED_SCORE, KVCache, mask_scores
from trn_jax.models.config import GPTConfig
from trn_jax.models.functional import split_model
from trn_jax.models.gpt import GPT, empty_caches
from trn_jax.models.heads import HeadShard, shard_heads
from trn_jax.models.layers import stack_blocks, unstack_blocks
from trn_jax.models.loss import IGNORED_TARGET, cross_entropy
from trn_jax.models.reference import REFERENCES, reference

__all__ = [
    "GPT",
    "IGNORED_TARGET",
    "MASKED_SCORE",
    "REFERENCES",
    "GPTConfig",
    "HeadShard",
    "KVCache",
    "cross_entropy",
    "empty_caches",
    "mask_scores",
    "reference",
    "shard_heads",
    "split_model",
    "stack_blocks",
    "unstack_blocks",
]

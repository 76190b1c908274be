"""The names of `embgrad.checkpoints` and their types: `__init__.py` imports each when it is first used."""

from embgrad.checkpoints.bert_config import complete_config, expect_expressible
from embgrad.checkpoints.keras_bert import keras_bert_targets, keras_checkpoint
from embgrad.checkpoints.load_bert import bert_names
from embgrad.checkpoints.weight_target import WeightTarget

__all__ = [
    "WeightTarget",
    "bert_names",
    "complete_config",
    "expect_expressible",
    "keras_bert_targets",
    "keras_checkpoint",
]

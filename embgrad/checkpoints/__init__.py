"""Loading of a checkpoint folder as a BERT in each framework. Backends import from here."""

from embgrad.common.lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(
    __name__,
    {
        "checkpoints.bert_config": ["complete_config", "expect_expressible"],
        "checkpoints.keras_bert": ["keras_bert_targets", "keras_checkpoint"],
        "checkpoints.load_bert": ["bert_names"],
        "checkpoints.weight_target": ["WeightTarget"],
    },
)

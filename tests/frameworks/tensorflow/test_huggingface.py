"""Hugging Face's TensorFlow classes with small random weights, against finite differences in float64 and their own tapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import transformers

import embgrad
from tests.frameworks.tensorflow.helpers import own_table_gradient

IDS = np.array([[5, 2, 9, 4, 3], [3, 8, 7, 1, 1], [6, 2, 1, 1, 1]])
MASK = (IDS != 1).astype(int)
BATCH = {"input_ids": IDS, "attention_mask": MASK}
SMALL = {
    "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12,
    "max_position_embeddings": 12,
    "initializer_range": 0.3,
}  # fmt: skip
DISTIL = {"vocab_size": 20, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12, "max_position_embeddings": 12}
GPT = {"vocab_size": 20, "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 12}
T5 = {"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 2, "num_heads": 2}

#: Class, configuration, options, the table's attribute path, the output that is read, other inputs.
MODELS: dict[str, tuple[str, str, dict[str, Any], str, str | None, dict[str, Any]]] = {
    "bert": ("TFBertModel", "BertConfig", SMALL, "bert.embeddings.weight", "pooled", {}),
    "classifier": ("TFBertForSequenceClassification", "BertConfig", SMALL, "bert.embeddings.weight", None, {}),
    "tied head": ("TFBertForMaskedLM", "BertConfig", SMALL, "bert.embeddings.weight", None, {}),
    "distilbert": ("TFDistilBertModel", "DistilBertConfig", DISTIL, "distilbert.embeddings.weight", "sequence", {}),
    "roberta": ("TFRobertaModel", "RobertaConfig", SMALL, "roberta.embeddings.weight", "sequence", {}),
    "electra": ("TFElectraModel", "ElectraConfig", {**SMALL, "embedding_size": 6}, "electra.embeddings.weight",
        "sequence", {}),
    "gpt2": ("TFGPT2LMHeadModel", "GPT2Config", GPT, "transformer.wte", None, {}),
    "t5": ("TFT5Model", "T5Config", T5, "shared", "last_hidden_state", {"decoder_input_ids": IDS + 1}),
}  # fmt: skip


def build(name: str) -> tuple[Any, str, str | None, dict[str, Any]]:
    class_name, config_name, options, path, output, others = MODELS[name]
    model = getattr(transformers, class_name)(getattr(transformers, config_name)(**options))
    batch = {**BATCH, **{key: np.asarray(value, np.int32) for key, value in others.items()}}
    model(**{key: tf.constant(value, tf.int32) for key, value in batch.items()})
    return model, path, output, batch


def objective(output: str | None, size: int) -> embgrad.Projection:
    """A projection on a fixed vector: the plain sum of a layer norm's output has no gradient."""
    return embgrad.Projection(np.cos(np.arange(size)), output=output)


def size_of(model: Any, batch: dict[str, Any], output: str | None) -> int:
    returned = model(**{key: tf.constant(value, tf.int32) for key, value in batch.items()})
    return int(returned[output_of(output)].shape[-1])


def table_of(model: Any) -> Any:
    tables = [variable for variable in model.variables if len(variable.shape) == 2 and variable.shape[0] == 20]
    return tables[0]


def output_of(output: str | None) -> Any:
    return {None: "logits", "pooled": "pooler_output", "sequence": "last_hidden_state"}.get(output, output)


@pytest.mark.parametrize("name", MODELS)
def test_lookup_part_of_the_models_own_gradient(name: str) -> None:
    model, path, output, batch = build(name)
    result = embgrad.gradients(model, batch, objective(output, size_of(model, batch, output)), at=f"{path}#0")
    assert result.provenance["path"] == f"{path}#0"
    own = own_total(model, batch, output)
    whole = own_table_gradient(table_of(model), own)
    lookup = result.table().to_dense()
    if name in ("tied head", "gpt2", "t5"):  # the table is also read by the head, or by the decoder
        assert np.abs(whole - lookup).max() > 1e-3
    else:
        np.testing.assert_allclose(lookup, whole, atol=2e-5 * np.abs(whole).max())


def own_total(model: Any, batch: dict[str, Any], output: str | None) -> Any:
    """The sum that `objective` takes: at real positions."""
    inputs = {key: tf.constant(value, tf.int32) for key, value in batch.items()}
    vector = np.cos(np.arange(size_of(model, batch, output)))

    def total() -> Any:
        value = model(**inputs, training=False)[output_of(output)]
        value = value * tf.cast(vector, value.dtype)
        return tf.reduce_sum(
            value * tf.cast(MASK[..., None], value.dtype) if value.shape[1] == MASK.shape[1] else value
        )

    return total

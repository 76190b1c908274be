"""keras-hub's BERT, where keras-hub is not needed: where weights go, by the variables' paths, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend import Weight
from embgrad.checkpoints.bert_config import _shape, lacking
from embgrad.checkpoints.keras_bert import is_keras_bert, keras_bert, keras_bert_targets
from embgrad.checkpoints.load_bert import bert_names
from embgrad.checkpoints.weight_target import WeightTarget
from tests.unit.refusals import refused

#: The shapes of a layer's variables in keras-hub, for a size of 6, two heads, and an inner size of 5.
LAYER = {
    **{f"self_attention_layer/{name}/kernel": (6, 2, 3) for name in ("query", "key", "value")},
    **{f"self_attention_layer/{name}/bias": (2, 3) for name in ("query", "key", "value")},
    "self_attention_layer/attention_output/kernel": (2, 3, 6),
    "self_attention_layer/attention_output/bias": (6,),
    "self_attention_layer_norm/gamma": (6,),
    "self_attention_layer_norm/beta": (6,),
    "feedforward_layer_norm/gamma": (6,),
    "feedforward_layer_norm/beta": (6,),
    "feedforward_intermediate_dense/kernel": (6, 5),
    "feedforward_intermediate_dense/bias": (5,),
    "feedforward_output_dense/kernel": (5, 6),
    "feedforward_output_dense/bias": (6,),
}
OUTER = {
    "token_embedding/embeddings": (9, 6),
    "position_embedding/embeddings": (4, 6),
    "segment_embedding/embeddings": (2, 6),
    "embeddings_layer_norm/gamma": (6,),
    "embeddings_layer_norm/beta": (6,),
    "pooled_dense/kernel": (6, 6),
    "pooled_dense/bias": (6,),
}


class Variable:
    def __init__(self, path: str, shape: tuple[int, ...]) -> None:
        self.path, self.shape, self.value = path, shape, np.zeros(shape)

    def assign(self, value: np.ndarray) -> None:
        assert value.shape == self.shape
        self.value = value


def backbone(prefix: str = "", **more: tuple[int, ...]) -> Any:
    """Return an object whose class is called as keras-hub's, with the variables of a BERT of two layers."""
    layers = {f"transformer_layer_{number}/{path}": shape for number in range(2) for path, shape in LAYER.items()}
    cls = type("BertBackbone", (), {"__module__": "keras_hub.src.models.bert.bert_backbone"})
    model = cls()
    model.weights = [Variable(prefix + path, shape) for path, shape in {**OUTER, **layers, **more}.items()]
    return model


@pytest.mark.parametrize("prefix", ["", "bert_text_classifier/"])
def test_every_weight_of_a_checkpoint_has_its_place(prefix: str) -> None:
    model = backbone(prefix)
    targets = keras_bert_targets(model)
    assert targets is not None
    assert sorted(target.source for target in targets) == sorted(bert_names(2))
    assert [target.native for target in targets] == [variable.path for variable in model.weights]
    sizes = {"hidden_size": 6, "intermediate_size": 5, "vocab_size": 9, "max_position_embeddings": 4}
    for target, variable in zip(targets, model.weights, strict=True):
        shape = _shape(target.source, {**sizes, "type_vocab_size": 2, "num_hidden_layers": 2})
        assert (target.shape[::-1] if target.transposed else target.shape) == shape
        in_checkpoint = np.random.default_rng(0).normal(size=target.shape[::-1] if target.transposed else target.shape)
        target.put(in_checkpoint.T if target.transposed else in_checkpoint)
        np.testing.assert_array_equal(target.as_in_checkpoint(variable.value), in_checkpoint)


def test_the_heads_of_attention_are_beside_each_other_in_a_checkpoint() -> None:
    model = backbone()
    by_name = {target.source: target for target in keras_bert_targets(model) or ()}
    variables = {variable.path: variable for variable in model.weights}
    query = np.arange(36.0).reshape(6, 6)  # (outputs, inputs)
    by_name["encoder.layer.1.attention.self.query.weight"].put(query.T)
    kernel = variables["transformer_layer_1/self_attention_layer/query/kernel"].value
    assert kernel[4, 1, 2] == query[3 + 2, 4]  # of input 4 the entry 2 of head 1
    dense = by_name["encoder.layer.0.attention.output.dense.weight"]
    dense.put(query.T)
    kernel = variables["transformer_layer_0/self_attention_layer/attention_output/kernel"].value
    assert kernel[1, 2, 4] == query[4, 3 + 2]


@pytest.mark.parametrize("name", ["lora/kernel", "transformer_layer_0/adapter/kernel", "pooled_dense/lora_kernel_a"])
def test_a_model_with_further_weights_is_not_a_checkpoints(name: str) -> None:
    model = backbone()
    model.weights.append(Variable(name, (2, 2)))
    assert is_keras_bert(model)
    assert keras_bert_targets(model) is None


def test_other_objects_are_no_bert() -> None:
    for other in (3, SimpleNamespace(weights=[]), type("BertBackbone", (), {})()):
        assert not is_keras_bert(other)
        assert keras_bert_targets(other) is None


def test_a_weight_is_read_and_written_in_the_checkpoints_shape() -> None:
    value = np.arange(12.0).reshape(2, 3, 2)

    def put(given: np.ndarray) -> None:
        value[:] = given

    native = Weight("a/kernel", "a", (2, 3, 2), "float32", value.copy, lambda indices: value[indices], put)
    named = WeightTarget("dense.weight", (6, 2), put, "a/kernel", transposed=True).with_name(native)
    assert (named.name, named.shape, named.canonical, named.transposed) == ("a/kernel", (6, 2), "dense.weight", True)
    np.testing.assert_array_equal(named.get(), value.reshape(6, 2))
    np.testing.assert_array_equal(named.rows(np.array([4, 1])), value.reshape(6, 2)[[4, 1]])
    named.put(np.ones((6, 2)))
    assert (value == 1).all()
    plain = WeightTarget("dense.weight", (4, 3), put, "a/kernel").as_in_checkpoint(value)
    np.testing.assert_array_equal(plain, value.reshape(4, 3))


@pytest.mark.parametrize(
    ("first", "missing", "said"),
    [
        (["a.weight", "c.weight"], 2, "lacks 2 of the model's weights: 'a.weight', 'c.weight'; expected all of 9"),
        (
            ["b.weights", "zzz"],
            3,
            "'zzz' and 1 more; expected all of 9, as config.json says. Did you mean 'b.weight'",
        ),
    ],
)
def test_weights_that_a_checkpoint_lacks_are_named(first: list[str], missing: int, said: str) -> None:
    assert said in lacking(Path("folder"), first, missing, 9, {"b.weight", "cls.predictions.bias"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "mish"}, "has hidden_act 'mish', and keras-hub's BERT supports only one of 'gelu', 'gelu_new'"),
        (
            {"is_decoder": True},
            "has is_decoder True, and keras-hub's BERT supports only False. Load it with framework=",
        ),
        ({"add_cross_attention": True}, "has add_cross_attention True, and keras-hub's BERT supports only False."),
        (
            {"attention_probs_dropout_prob": 0.2},
            "attention_probs_dropout_prob 0.2, and keras-hub's BERT supports only 0.1, the value of hidden_dropout_prob",
        ),
    ],
)
def test_a_configuration_that_keras_hub_does_not_support_is_refused(changes: dict[str, Any], message: str) -> None:
    with refused(embgrad.errors.UnsupportedError, message):
        keras_bert(changes)


def test_keras_hub_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras", None)
    with refused(
        embgrad.errors.BackendError,
        "load_bert returns a keras_hub.models.BertBackbone, and keras-hub cannot be imported (",
        "Install it: pip install 'embgrad[keras]'",
    ):
        keras_bert({})

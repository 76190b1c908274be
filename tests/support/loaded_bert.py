"""Tests of `load_bert` in every framework, against BERT in NumPy; the tests of a framework derive from the classes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import embgrad
from embgrad.checkpoints.load_bert import bert_names
from embgrad.engine.weights import substitute, weights_of
from tests.support.bert_by_hand import ACTIVATIONS, bert_by_hand, random_weights

CONFIG = {
    "model_type": "bert", "vocab_size": 23, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 10,
    "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
}  # fmt: skip
BATCH = embgrad.TokenBatch(
    np.array([[2, 7, 5, 11, 3], [2, 9, 13, 0, 0]]),
    np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
    np.array([[0, 0, 0, 1, 1], [0, 1, 1, 0, 0]]),
)
#: The imaginary step by which the arithmetic in NumPy is differentiated.
STEP = 1e-20


def checkpoint(folder: Path, **changes: Any) -> dict[str, np.ndarray]:
    """Write a checkpoint folder with random weights, and return these."""
    config = {**CONFIG, **changes}
    weights = random_weights(config, np.random.default_rng(5))
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return weights


def by_hand(weights: dict[str, np.ndarray], words: Any = None, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the sequence and the pooled output of BERT in NumPy on the batch."""
    assert BATCH.mask is not None
    assert BATCH.types is not None
    rows = weights["embeddings.word_embeddings.weight"][BATCH.ids] if words is None else words
    return bert_by_hand(weights, {**CONFIG, **changes}, rows, BATCH.mask, BATCH.types)


class LoadedBert:
    """Tests of a loaded model's outputs.

    Attributes:
        framework: the name that `load_bert` is given.
    """

    framework: str

    def outputs(self, model: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the sequence and the pooled output of the model on the batch, computed by the framework alone."""
        raise NotImplementedError

    @pytest.mark.parametrize(("act", "epsilon"), [*((act, 1e-12) for act in ACTIVATIONS), ("gelu", 1e-2)])
    def test_it_computes_as_the_configuration_says(self, tmp_path: Path, act: str, epsilon: float) -> None:
        changes = {"hidden_act": act, "layer_norm_eps": epsilon}
        weights = checkpoint(tmp_path, **changes)
        sequence, pooled = self.outputs(embgrad.zoo.load_bert(tmp_path, self.framework))
        expected = by_hand(weights, **changes)
        real = np.asarray(BATCH.mask, bool)
        np.testing.assert_allclose(sequence[real], expected[0][real], atol=2e-5)
        np.testing.assert_allclose(pooled, expected[1], atol=2e-5)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"hidden_act": "mish"}, r"has hidden_act 'mish', and .*BERT.* supports only one of 'gelu'"),
            ({"is_decoder": True}, "is_decoder True.*supports only False"),
            ({"add_cross_attention": True}, "add_cross_attention True.*supports only False"),
        ],
    )
    def test_another_configuration_is_refused(self, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
        checkpoint(tmp_path, **changes)
        with pytest.raises(embgrad.errors.UnsupportedError, match=message + r".* Load it with framework='torch'"):
            embgrad.zoo.load_bert(tmp_path, self.framework)

    def test_loading_moves_no_random_numbers(self, tmp_path: Path) -> None:
        checkpoint(tmp_path)
        before = random.getstate(), np.random.get_state(legacy=True)[1].tolist()
        embgrad.zoo.load_bert(tmp_path, self.framework)
        assert (random.getstate(), np.random.get_state(legacy=True)[1].tolist()) == before


class DescribedBert(LoadedBert):
    """Tests of embgrad's own view of a loaded model: gradients, and the checkpoint's names of its weights."""

    def test_the_gradient_at_the_words_is_that_of_the_arithmetic(self, tmp_path: Path) -> None:
        weights = checkpoint(tmp_path)
        model = embgrad.zoo.load_bert(tmp_path, self.framework)
        vector = np.cos(np.arange(8.0))
        result = embgrad.gradients(model, BATCH, embgrad.Projection(vector, output="pooled"))
        rows = weights["embeddings.word_embeddings.weight"][BATCH.ids].astype(np.float64)
        steps = np.eye(rows.size).reshape(-1, *rows.shape) * 1j * STEP
        expected = (by_hand(weights, rows + steps)[1] @ vector).sum(-1).imag / STEP
        np.testing.assert_allclose(result.values, expected.reshape(rows.shape), atol=2e-4)
        np.testing.assert_array_equal(result.activations, rows)
        assert result.pad_leak < 1e-7

    def test_each_weight_has_the_name_and_the_values_of_the_checkpoint(self, tmp_path: Path) -> None:
        weights = checkpoint(tmp_path)
        model = embgrad.zoo.load_bert(tmp_path, self.framework)
        named = {weight.canonical: weight for weight in weights_of(model)}
        assert sorted(filter(None, named)) == sorted(bert_names(2)) == sorted(weights)
        for name, value in weights.items():
            weight = named[name]
            np.testing.assert_array_equal(weight.get().T if weight.transposed else weight.get(), value)
            np.testing.assert_array_equal(weight.rows(np.array([1, 0])), weight.get()[[1, 0]])

    def test_a_weight_can_be_substituted_in_the_checkpoints_shape(self, tmp_path: Path) -> None:
        weights = checkpoint(tmp_path)
        model = embgrad.zoo.load_bert(tmp_path, self.framework)
        named = {weight.canonical: weight for weight in weights_of(model)}
        for name in ("encoder.layer.1.attention.self.value.weight", "encoder.layer.0.attention.output.dense.weight"):
            other = np.random.default_rng(1).normal(size=(8, 8)).astype(np.float32)
            weight = named[name]
            with substitute(model, {weight.name: other.T if weight.transposed else other}):
                pooled = self.outputs(model)[1]
            np.testing.assert_allclose(pooled, by_hand({**weights, name: other})[1], atol=2e-5)
        np.testing.assert_allclose(self.outputs(model)[1], by_hand(weights)[1], atol=2e-5)

    def test_parameter_gradients_have_the_checkpoints_names_and_shapes(self, tmp_path: Path) -> None:
        weights = checkpoint(tmp_path)
        model = embgrad.zoo.load_bert(tmp_path, self.framework)
        vector = np.cos(np.arange(8.0))
        actual = embgrad.tables.parameter_gradients(
            model, BATCH, embgrad.Projection(vector, output="pooled"), names="canonical"
        )
        assert sorted(actual) == sorted(weights)
        for name, value in weights.items():
            assert actual[name].shape == value.shape
            direction = np.random.default_rng(2).normal(size=value.shape)
            moved = {**weights, name: value.astype(np.float64) + 1e-5 * direction}
            back = {**weights, name: value.astype(np.float64) - 1e-5 * direction}
            slope = float(((by_hand(moved)[1] - by_hand(back)[1]) @ vector).sum()) / 2e-5
            assert float((actual[name] * direction).sum()) == pytest.approx(slope, rel=2e-3, abs=2e-4)

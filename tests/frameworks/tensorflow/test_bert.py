"""`load_bert` in TensorFlow: a checkpoint folder becomes a TFBertModel with the same weights."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import transformers
from safetensors.numpy import load_file, save_file

import embgrad

CONFIG = {
    "model_type": "bert",
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 12,
    "type_vocab_size": 2,
}
IDS = np.array([[5, 2, 9, 4], [3, 8, 0, 0]])
MASK = (IDS > 0).astype(int)


def checkpoint(folder: Path, config: dict[str, Any] = CONFIG, dtype: str = "float32") -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(4)
    hidden, feed = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "embeddings.word_embeddings.weight": (config["vocab_size"], hidden),
        "embeddings.position_embeddings.weight": (config["max_position_embeddings"], hidden),
        "embeddings.token_type_embeddings.weight": (config["type_vocab_size"], hidden),
    }
    for name in embgrad.checkpoints.load_bert.bert_names(config["num_hidden_layers"])[3:]:
        last = (hidden,) if "LayerNorm" in name else (hidden, hidden)
        last = {"intermediate.dense": (feed, hidden)}.get(".".join(name.split(".")[-3:-1]), last)
        if name.endswith("output.dense.weight") and "attention" not in name:
            last = (hidden, feed)
        shapes[name] = last if name.endswith("weight") else last[:1]
    weights = {name: (0.3 * numbers.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return weights


def encoded(weights: dict[str, np.ndarray], ids: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """BERT's pooled output in NumPy."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def dense(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * w[f"{name}.weight"] + w[f"{name}.bias"]

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], 2, -1).swapaxes(1, 2)

    erf = np.vectorize(__import__("math").erf)
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x + w["embeddings.position_embeddings.weight"][: ids.shape[1]], "embeddings.LayerNorm")
    for layer in range(2):
        at = f"encoder.layer.{layer}"
        q, k, v = (heads(dense(x, f"{at}.attention.self.{one}")) for one in ("query", "key", "value"))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + np.where(mask, 0, -np.inf)[:, None, None]
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (weight / weight.sum(-1, keepdims=True)) @ v
        mixed = mixed.swapaxes(1, 2).reshape(x.shape)
        x = norm(x + dense(mixed, f"{at}.attention.output.dense"), f"{at}.attention.output.LayerNorm")
        inner = dense(x, f"{at}.intermediate.dense")
        inner = inner * 0.5 * (1 + erf(inner / np.sqrt(2)))
        x = norm(x + dense(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    return np.tanh(dense(x[:, 0], "pooler.dense"))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_model_computes_as_the_checkpoint_says(tmp_path: Path, dtype: str) -> None:
    weights = checkpoint(tmp_path, dtype=dtype)
    model = embgrad.zoo.load_bert(tmp_path, "tensorflow")
    assert type(model).__name__ == "TFBertModel"
    pooled = model(tf.constant(IDS), attention_mask=tf.constant(MASK)).pooler_output
    np.testing.assert_allclose(pooled, encoded(weights, IDS, MASK), atol=2e-6)


def test_the_gradient_is_that_of_the_arithmetic(tmp_path: Path) -> None:
    weights = checkpoint(tmp_path)
    model = embgrad.zoo.load_bert(tmp_path, "tensorflow")
    vector = np.cos(np.arange(8))
    result = embgrad.gradients(
        model, {"input_ids": IDS, "attention_mask": MASK}, embgrad.Projection(vector, output="pooled")
    )
    table = weights["embeddings.word_embeddings.weight"].astype(np.float64)
    direction = np.random.default_rng(0).normal(size=table.shape)

    def total(distance: float) -> float:
        moved = {**weights, "embeddings.word_embeddings.weight": table + distance * direction}
        return float((encoded(moved, IDS, MASK) * vector).sum())

    slope = (total(1e-5) - total(-1e-5)) / 2e-5
    assert slope == pytest.approx(float((result.table().to_dense() * direction).sum()), rel=1e-4)
    assert not result.values[MASK == 0].any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("encoder.layer.1.output.dense.bias"), r"lacks 1 .*'encoder.layer.1.output.dense.bias'"),
        (lambda w: w.update({"extra.weight": np.zeros(3, "f4")}), r"holds 1 weights .*'extra.weight'"),
        (
            lambda w: w.update({"pooler.dense.bias": np.zeros(3, "f4")}),
            r"'pooler.dense.bias' of shape \(3,\): the configuration requires \(8,\)",
        ),
        (
            lambda w: w.update({"encoder.layer.0.intermediate.dense.weight": np.zeros((8, 12), "f4")}),
            r"shape \(8, 12\): the configuration requires \(12, 8\)",
        ),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, change: Any, message: str) -> None:
    weights = checkpoint(tmp_path)
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(embgrad.errors.FileFormatError, match=message):
        embgrad.zoo.load_bert(tmp_path, "tensorflow")
    assert load_file(tmp_path / "model.safetensors")


@pytest.mark.parametrize("setting", [{"add_cross_attention": True}, {"is_decoder": True}, {"hidden_act": "no such"}])
def test_configurations_that_tfbert_ignores_are_refused(tmp_path: Path, setting: dict[str, Any]) -> None:
    checkpoint(tmp_path, {**CONFIG, **setting})
    with pytest.raises(embgrad.errors.UnsupportedError, match=next(iter(setting))):
        embgrad.zoo.load_bert(tmp_path, "tensorflow")


@pytest.mark.parametrize("seeded", [False, True])
def test_loading_restores_random_generators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seeded: bool) -> None:
    """Keras 2 draws its seeds from Python's generator, or, once it has a seed, from one of its own."""
    import tf_keras

    checkpoint(tmp_path)
    found = []
    for load in (False, True):
        tf_keras.utils.set_random_seed(7)
        if not seeded:
            monkeypatch.setattr(tf_keras.src.backend._SEED_GENERATOR, "generator", None)
        random.seed(3)
        np.random.seed(3)
        tf.random.set_seed(3)
        if load:
            embgrad.zoo.load_bert(tmp_path, "tensorflow")
        drawn = tf_keras.initializers.GlorotUniform()((2, 2)).numpy().tolist()
        found.append((random.random(), np.random.random(), float(tf.random.uniform(())), drawn))
    assert found[0] == found[1]


@pytest.mark.parametrize("installed", [True, False])
def test_missing_classes_of_transformers_are_an_error(tmp_path: Path, monkeypatch: Any, installed: bool) -> None:
    checkpoint(tmp_path)
    if installed:
        monkeypatch.setitem(vars(transformers), "TFBertModel", type("TFBertModel", (), {}))
    else:
        monkeypatch.setitem(sys.modules, "transformers", None)
    message = r"classes are not available \(.*transformers.*embgrad\[tensorflow\].*TF_USE_LEGACY_KERAS unset"
    with pytest.raises(embgrad.errors.BackendError, match=message):
        embgrad.zoo.load_bert(tmp_path, "tensorflow")

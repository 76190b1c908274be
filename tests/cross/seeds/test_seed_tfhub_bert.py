"""S5: a TF Hub BERT under a GradientTape, for all trainable variables, and the gradient at the lookup inside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
import tensorflow_text
import tf_keras
import tokenizers
import torch

import embgrad
from embgrad.loading.minilm import minilm_folder

assert tensorflow_text  # registers the operations of the preprocessing model

DATA = Path(__file__).parents[2] / "data"
TEXTS = ["the film was good", "a bad film"]
PAIRS: list[Any] = [("the film was good", "it was bad"), "a film"]
LABELS = np.array([1, 0])


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """MiniLM's real weights as a SavedModel with TF Hub's names of inputs and outputs."""
    model = embgrad.zoo.load_bert(minilm_folder(), "tensorflow")

    class Encoder(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = model
            self.trainable_variables_ = model.trainable_variables

        @tf.function(
            input_signature=[
                {
                    name: tf.TensorSpec((None, None), tf.int32, name=name)
                    for name in ("input_word_ids", "input_mask", "input_type_ids")
                }
            ]
        )
        def __call__(self, inputs: Any) -> Any:
            outputs = self.bert(
                {
                    "input_ids": inputs["input_word_ids"],
                    "attention_mask": inputs["input_mask"],
                    "token_type_ids": inputs["input_type_ids"],
                },
                output_hidden_states=True,
                training=False,
            )
            return {
                "pooled_output": outputs.pooler_output,
                "sequence_output": outputs.last_hidden_state,
                "encoder_outputs": list(outputs.hidden_states[1:]),
            }

    folder = tmp_path_factory.mktemp("hub") / "minilm"
    encoder = Encoder()
    tf.saved_model.save(encoder, str(folder))
    return folder


@pytest.fixture
def batch() -> embgrad.TokenBatch:
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    encoded = embgrad.encode([*TEXTS, ("a man plays", "music")], tokenizer)
    return encoded.replace(convention="tfhub")


def by_torch(batch: embgrad.TokenBatch, points: list[str]) -> dict[str, np.ndarray]:
    """PyTorch's gradients of the pooled output's sum by hand: the lookup's, and each layer's."""
    model = embgrad.zoo.load_bert(minilm_folder(), "torch")
    rows: list[Any] = []
    model.embeddings.word_embeddings.register_forward_hook(lambda m, i, o: rows.append(o))
    inputs = {name: torch.tensor(value) for name, value in batch.to_huggingface().items()}
    outputs = model(**inputs, output_hidden_states=True)
    states = {"word": rows[0], **{f"layer.{n}": state for n, state in enumerate(outputs.hidden_states[1:])}}
    states["layer.-1"] = outputs.hidden_states[-1]
    found = torch.autograd.grad(outputs.pooler_output.sum(), [states[point] for point in points])
    return {point: one.numpy() for point, one in zip(points, found, strict=True)}


def relative(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("way", ["hub.load", "hub.KerasLayer", "tf.saved_model.load"])
def test_seed_tfhub_bert_at_the_lookup_inside(minilm: Path, batch: embgrad.TokenBatch, way: str) -> None:
    ways = {
        "hub.load": hub.load,
        "hub.KerasLayer": lambda f: hub.KerasLayer(f, trainable=True),
        "tf.saved_model.load": tf.saved_model.load,
    }
    model = ways[way](str(minilm))
    points = ["word", "layer.0", "layer.3", "layer.-1"]
    results = embgrad.gradients(model, batch, embgrad.Sum(output="pooled"), at=points)
    for point, expected in by_torch(batch, points).items():
        assert relative(results[point].values, expected) < 5e-6, point


def test_seed_tfhub_bert_in_a_new_process(minilm: Path, batch: embgrad.TokenBatch, tmp_path: Path) -> None:
    """Its source is not Python of ours there: the folder alone is loaded."""
    script = (
        "import sys, numpy as np, tensorflow_hub as hub, embgrad\n"
        "ids, mask, types = np.load(sys.argv[2])\n"
        "batch = embgrad.TokenBatch(ids, mask, types, convention='tfhub')\n"
        "g = embgrad.gradients(hub.load(sys.argv[1]), batch, embgrad.Sum(output='pooled'))\n"
        "g.save(sys.argv[3])\n"
        "print([name for name in ('transformers', 'torch', 'mxnet') if name in sys.modules])\n"
    )
    np.save(tmp_path / "batch.npy", np.stack([batch.ids, batch.model_mask(), batch.to_tfhub()["input_type_ids"]]))
    arguments = [str(minilm), str(tmp_path / "batch.npy"), str(tmp_path / "g.safetensors")]
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "[]"
    result = embgrad.load(tmp_path / "g.safetensors")
    assert relative(result.values, by_torch(batch, ["word"])["word"]) < 5e-6


def test_seed_tfhub_bert_changes_inside(minilm: Path, batch: embgrad.TokenBatch) -> None:
    """Override, add and edit reach into the saved model: against the same changes in PyTorch's model."""
    saved, ours = hub.load(str(minilm)), embgrad.zoo.load_bert(minilm_folder(), "torch")
    steering = np.random.default_rng(0).normal(size=384)
    for options in (
        {"override": {"word": lambda value: value[:, ::-1]}},
        {"add": {"layer.2": steering}},
        {"edit": {"layer.4": lambda grad: grad * (np.arange(384) % 2)}},
    ):
        at = ["word", "layer.1"] if "override" not in options else ["word"]
        found = embgrad.gradients(saved, batch, embgrad.Sum(output="pooled"), at=at, **options)  # type: ignore[call-overload]
        expected = embgrad.gradients(ours, batch, embgrad.Sum(output="pooled"), at=at, **options)  # type: ignore[call-overload]
        for name in at:
            assert relative(found[name].values, expected[name].values) < 1e-5
    silent = embgrad.gradients(saved, batch, embgrad.Sum(output="pooled"), edit={"layer.1": lambda grad: grad * 0})
    assert not silent.values.any()


def head(parts: Any, inputs: Any) -> Any:
    return parts[1](parts[0](inputs)["pooled_output"])


@pytest.mark.parametrize("texts", [TEXTS, PAIRS], ids=["texts", "a pair"])
def test_seed_tfhub_bert_all_trainable_variables(texts: Any) -> None:
    """The official exporter's encoder and preprocessing model: text → tensors → encoder → head → loss → every gradient."""
    tf_keras.utils.set_random_seed(0)
    encoder = hub.KerasLayer(str(DATA / "tfhub_bert_tiny"), trainable=True)
    dense = tf_keras.layers.Dense(2, activation="softmax")
    if texts is TEXTS:
        batch = embgrad.encode(texts, hub.KerasLayer(str(DATA / "tfhub_bert_tiny_preprocess")))
    else:
        words = (DATA / "tfhub_bert_tiny" / "assets" / "uncased_vocab.txt").read_text().split()
        vocabulary = tokenizers.models.WordPiece({word: n for n, word in enumerate(words)}, unk_token="[UNK]")
        tokenizer = tokenizers.Tokenizer(vocabulary)
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        special = [("[CLS]", words.index("[CLS]")), ("[SEP]", words.index("[SEP]"))]
        tokenizer.post_processor = tokenizers.processors.BertProcessing(special[1], special[0])
        batch = embgrad.encode(texts, tokenizer).replace(convention="tfhub")
        assert batch.types is not None
        assert set(np.unique(batch.types)) == {0, 1}
    inputs = {name: tf.constant(value) for name, value in batch.to_tfhub().items()}
    with tf.GradientTape() as tape:
        probabilities = dense(encoder(inputs, training=False)["pooled_output"])
        loss = tf.reduce_sum(tf_keras.losses.sparse_categorical_crossentropy(LABELS, probabilities))
    variables = encoder.trainable_variables + dense.trainable_variables
    expected = tape.gradient(loss, variables)
    found = embgrad.tables.parameter_gradients(
        [encoder, dense], batch, embgrad.CrossEntropy(LABELS, of="probabilities"), call=head
    )
    assert len(found) == len(variables)
    scale = max(float(tf.reduce_max(tf.abs(tf.convert_to_tensor(one)))) for one in expected if one is not None)
    for (name, one), other in zip(found.items(), expected, strict=True):
        if other is None:
            assert name in found.unreached
            assert not one.any()
        else:
            np.testing.assert_allclose(one, tf.convert_to_tensor(other).numpy(), atol=2e-6 * scale, err_msg=name)


def test_seed_tfhub_bert_a_training_step() -> None:
    """One step of the user's by embgrad's gradients and by the tape's ends in the same weights, to rounding."""

    def parts() -> list[Any]:
        tf_keras.utils.set_random_seed(0)
        made = [
            hub.KerasLayer(str(DATA / "tfhub_bert_tiny"), trainable=True),
            tf_keras.layers.Dense(2, activation="softmax"),
        ]
        made[1].build((None, 16))
        return made

    batch = embgrad.encode(TEXTS, hub.KerasLayer(str(DATA / "tfhub_bert_tiny_preprocess")))
    inputs = {name: tf.constant(value) for name, value in batch.to_tfhub().items()}
    by_tape, ours = parts(), parts()
    objective = embgrad.CrossEntropy(LABELS, of="probabilities")
    before = embgrad.gradients(by_tape, batch, objective, call=head).objective.sum()
    variables = [one for part in by_tape for one in part.trainable_variables]
    with tf.GradientTape() as tape:
        probabilities = by_tape[1](by_tape[0](inputs, training=False)["pooled_output"])
        loss = tf.reduce_sum(tf_keras.losses.sparse_categorical_crossentropy(LABELS, probabilities))
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        if gradient is not None:
            variable.assign_sub(0.05 * tf.convert_to_tensor(gradient))
    found = embgrad.tables.parameter_gradients(ours, batch, objective, call=head)
    for variable, gradient in zip(
        [one for part in ours for one in part.trainable_variables], found.values(), strict=True
    ):
        variable.assign_sub(0.05 * gradient)
    for one, other in zip(variables, [one for part in ours for one in part.trainable_variables], strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-5)
    assert embgrad.gradients(ours, batch, objective, call=head).objective.sum() < before


def test_seed_tfhub_bert_raw_strings() -> None:
    encoder = hub.KerasLayer(str(DATA / "tfhub_bert_tiny"), trainable=True)
    with pytest.raises(embgrad.errors.BatchError, match=r"raw text, and a model reads token ids: pass tokenizer="):
        embgrad.gradients(encoder, TEXTS, embgrad.Sum(output="pooled"))
    preprocess = hub.KerasLayer(str(DATA / "tfhub_bert_tiny_preprocess"))
    result = embgrad.gradients(encoder, TEXTS, embgrad.Sum(output="pooled"), tokenizer=preprocess)
    assert result.shape == (2, 6, 16)  # padded to the longest, not to the preprocessing model's own 16


def test_seed_tfhub_bert_a_tied_head_and_a_dense_gradient() -> None:
    """The official `.mlm`, whose table's gradient is dense: the lookup's share by itself."""
    model = hub.load(str(DATA / "tfhub_bert_tiny"))
    batch = embgrad.encode(TEXTS, hub.KerasLayer(str(DATA / "tfhub_bert_tiny_preprocess")))
    positions = np.array([[1, 2], [1, 2]], np.int32)

    def call(one: Any, inputs: Any) -> Any:
        return one.mlm({**inputs, "masked_lm_positions": tf.constant(positions)})["mlm_logits"]

    labels = np.array([[7, 9], [11, 8]])

    def loss(logits: Any) -> Any:
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits), 1)

    ledger = embgrad.tables.table_gradients(model, batch, loss, call=call)
    table = next(one for one in model.variables if tuple(one.shape) == ledger.total.shape)
    inputs = {name: tf.constant(value) for name, value in batch.to_tfhub().items()}
    with tf.GradientTape() as tape:
        tape.watch(table)
        total = tf.reduce_sum(loss(call(model, inputs)))
    expected = tf.convert_to_tensor(tape.gradient(total, table)).numpy()
    np.testing.assert_allclose(ledger.total, expected, atol=1e-5 * np.abs(expected).max())
    assert ledger.head.any()
    assert ledger.lookup.any()

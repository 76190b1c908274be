"""Small models of each framework with the same weights in every process, and a tokenizer."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

VOCAB, DIM, CLASSES = 40, 5, 3
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{number}" for number in range(VOCAB - 4))]


def tokenizer() -> Any:
    """Return a tokenizer of words with BERT's special tokens."""
    import tokenizers
    from tokenizers import models, pre_tokenizers, processors

    made = tokenizers.Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return made


def split(text: str) -> list[int]:
    """Tokenize without a library."""
    return [2, *(WORDS.index(word) for word in text.split()), 3]


def _weights(dtype: str = "float64") -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"E": (VOCAB, DIM), "W1": (DIM, DIM), "W": (DIM, CLASSES)}
    return {name: random.normal(size=shape).astype(dtype) for name, shape in shapes.items()}


def _masked(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray | None = None) -> Tensor:
    rows = lookup(model["E"], input_ids)
    mask = np.ones(input_ids.shape) if attention_mask is None else attention_mask
    share = Tensor((mask / mask.sum(1, keepdims=True)).astype(rows.value.dtype)[..., None])
    return ((rows @ model["W1"]).tanh() * share).sum(1) @ model["W"]


def _maskless(model: Any, input_ids: np.ndarray) -> Tensor:
    return (lookup(model["E"], input_ids) @ model["W1"]).tanh().mean(1) @ model["W"]


def reference() -> ReferenceModel:
    return ReferenceModel(_masked, _weights())


def reference_float32() -> ReferenceModel:
    return ReferenceModel(_masked, _weights("float32"))


def maskless() -> ReferenceModel:
    """Return a model that takes no mask."""
    return ReferenceModel(_maskless, _weights())


def forgetful() -> ReferenceModel:
    """Return a model that takes a mask and ignores it."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray | None = None) -> Tensor:
        return _maskless(model, input_ids)

    return ReferenceModel(forward, _weights())


def meeting() -> ReferenceModel:
    """Return a model whose rows depend on each other, as with batch statistics."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray | None = None) -> Tensor:
        logits = _masked(model, input_ids, attention_mask)
        return logits * logits.mean(0)

    return ReferenceModel(forward, _weights())


def pooling() -> ReferenceModel:
    """Return a model that has a point without positions."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray | None = None) -> Tensor:
        rows = lookup(model["E"], input_ids)
        mask = np.ones(input_ids.shape) if attention_mask is None else attention_mask
        return model.module("pool", lambda x: x.sum(1), rows * Tensor(mask[..., None].astype(float))) @ model["W"]

    return ReferenceModel(forward, _weights(), ["pool"])


def drawn() -> ReferenceModel:
    """Return a model with another random head at each call."""
    return ReferenceModel(_masked, {**_weights(), "W": np.random.default_rng().normal(size=(DIM, CLASSES))})


def reading() -> tuple[ReferenceModel, Any]:
    return reference(), split


def torch_bert() -> tuple[Any, Any]:
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
        num_labels=CLASSES,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config).eval(), tokenizer()


def keras_net() -> Any:
    import tf_keras

    tf_keras.utils.set_random_seed(0)
    ids = tf_keras.Input((None,), dtype="int32")
    hidden = tf_keras.layers.Embedding(VOCAB, DIM)(ids)
    hidden = tf_keras.layers.Dense(DIM, activation="tanh")(hidden)
    pooled = tf_keras.layers.GlobalAveragePooling1D()(hidden)
    return tf_keras.Model(ids, tf_keras.layers.Dense(CLASSES)(pooled))


def gluon_bert() -> tuple[Any, Any]:
    from embgrad_gluon.importing import import_mxnet

    mx = import_mxnet()
    import gluonnlp

    encoder = gluonnlp.model.BERTEncoder(num_layers=2, units=16, hidden_size=32, max_length=32, num_heads=2)
    net = gluonnlp.model.BERTModel(
        encoder, VOCAB, token_type_vocab_size=2, units=16, embed_size=16, use_decoder=False, use_classifier=False
    )
    net.initialize(mx.init.Zero())
    net(mx.nd.array([[2, 3]]), mx.nd.array([[0, 0]]), mx.nd.array([2]))  # tells the layers their sizes
    random = np.random.default_rng(0)
    for _, parameter in sorted(net._collect_params_with_prefix().items()):
        parameter.set_data(mx.nd.array(random.normal(size=parameter.shape) * 0.3))
    return net, tokenizer()


def labelled(rows: Any) -> embgrad.Objective:
    return embgrad.CrossEntropy(rows["label"])


class Observed:
    """Records which processes built the model and which batches they began, so that one can be killed.

    Args:
        folder: where it is taken down.
        build: builds the model.
        objective: that of the rows; by default the cross-entropy of their labels.
        seconds: how long each batch is made to take at least.
    """

    def __init__(
        self,
        folder: Path,
        build: Callable[[], Any] = reference,
        objective: Callable[[Any], embgrad.Objective] = labelled,
        seconds: float = 0.1,
    ) -> None:
        self.folder, self._build, self._objective, self._seconds = folder, build, objective, seconds

    def __call__(self) -> Any:
        built = self._build()
        (self.folder / f"built-{os.getpid()}").touch()
        return built

    def objective(self, rows: Any) -> embgrad.Objective:
        """Return the objective of the rows, and record that a batch was begun."""
        (self.folder / f"begun-{os.getpid()}-{time.monotonic_ns()}").touch()
        time.sleep(self._seconds)
        return self._objective(rows)

    def builders(self) -> set[int]:
        """Return the processes that have built the model."""
        return {int(item.name.rpartition("-")[2]) for item in self.folder.glob("built-*")}

    def begun(self, process: int) -> int:
        """Return the number of batches that a process has begun."""
        return len(list(self.folder.glob(f"begun-{process}-*")))

    def last(self, process: int) -> int:
        """Return when a process began its last batch, in nanoseconds."""
        return max((int(item.name.rpartition("-")[2]) for item in self.folder.glob(f"begun-{process}-*")), default=0)


def kill(observed: Observed, count: int) -> list[int]:
    """Kill processes that hold the model, each in its second batch or later; return a list that will hold their ids."""
    killed: list[int] = []

    def watch() -> None:
        for _ in range(30_000):
            for process in observed.builders() - set(killed):
                if observed.begun(process) >= 2:
                    os.kill(process, signal.SIGKILL)
                    killed.append(process)
                    if len(killed) == count:
                        return
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    return killed

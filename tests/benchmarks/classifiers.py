"""A small classifier with two layers of a BERT in each framework, and the function that is its own forward pass."""

from __future__ import annotations

import importlib.util
import inspect
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final

import numpy as np

import embgrad
from embgrad.checkpoints.load_bert import load_bert  # from its module: its public name is not that of all versions
from tests.benchmarks.cases import drawn_bert

LAYERS, DIM, VOCAB, CLASSES = 2, 32, 100, 2
IDS: Final = np.array([[5, 7, 9, 1], [8, 2, 4, 11]])


@dataclass(frozen=True)
class Classifier:
    """A model, a batch of two texts, and an objective.

    Attributes:
        forward: the code of the model's own forward pass.
        own: the file of the model where embgrad defines it, which is no part of the way to it.
    """

    model: Any
    batch: Any
    objective: embgrad.Objective
    forward: CodeType
    own: str | None = None


@dataclass(frozen=True)
class Kind:
    """A framework in which there is a classifier.

    Attributes:
        packages: what must be installed.
        build: returns the classifier.
        keras: Keras's backend.
    """

    packages: tuple[str, ...]
    build: Callable[[], Classifier]
    keras: str | None = None

    def installed(self) -> bool:
        return all(importlib.util.find_spec(package) for package in self.packages)


def reference() -> Classifier:
    """Return two layers in the NumPy reference, without attention: what embgrad does for a call does not depend on it."""
    from embgrad.testing.reference import ReferenceModel, Tensor, lookup

    random = np.random.default_rng(0)
    shapes = {"E": (VOCAB, DIM), "W": (DIM, DIM), "H": (DIM, CLASSES)}

    def layer(model: Any, x: Tensor) -> Tensor:
        return x + (x @ model["W"]).tanh()

    def forward(model: Any, input_ids: np.ndarray) -> dict[str, Tensor]:
        x = lookup(model["E"], input_ids)
        for number in range(LAYERS):
            x = model.module(f"layers.{number}", layer, model, x)
        return {"logits": x.mean(1) @ model["H"]}

    paths = [f"layers.{number}" for number in range(LAYERS)]
    model = ReferenceModel(forward, {name: random.normal(size=shape) for name, shape in shapes.items()}, paths)
    return _classifier(model, forward)


def pytorch() -> Classifier:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**_sizes())).eval()
    return _classifier(model, type(model).forward)


def tensorflow() -> Classifier:
    from transformers import BertConfig, TFBertForSequenceClassification

    model = TFBertForSequenceClassification(BertConfig(**_sizes()))
    model(IDS)
    return _classifier(model, type(model).call)


def keras() -> Classifier:
    import keras
    import keras_hub

    keras.utils.set_random_seed(0)
    sizes = {"num_layers": LAYERS, "num_heads": 2, "hidden_dim": DIM, "intermediate_dim": DIM}
    backbone = keras_hub.models.BertBackbone(vocabulary_size=VOCAB, max_sequence_length=DIM, **sizes)
    model = keras_hub.models.BertTextClassifier(backbone, num_classes=CLASSES)
    return _classifier(model, type(model).call)


def jax() -> Classifier:
    """Return embgrad's BERT in Flax NNX with a head."""
    import jax.numpy as jnp
    from embgrad_jax import bert
    from flax import nnx

    class WithHead(nnx.Module):  # type: ignore[misc]
        def __init__(self, encoder: Any) -> None:
            self.bert = encoder
            self.classifier = nnx.Linear(DIM, CLASSES, rngs=nnx.Rngs(0))

        def __call__(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> Any:
            return {"logits": self.classifier(self.bert(input_ids, attention_mask, token_type_ids)["pooler_output"])}

    model = WithHead(_drawn("jax"))
    model(jnp.asarray(IDS))
    return _classifier(model, WithHead.__call__, own=inspect.getsourcefile(bert))


def gluon() -> Classifier:
    from embgrad_gluon import import_mxnet

    import_mxnet()
    from gluonnlp.model import BERTClassifier

    model = BERTClassifier(_drawn("gluon"), num_classes=CLASSES)
    model.classifier.initialize()
    batch = embgrad.TokenBatch(IDS, np.ones(IDS.shape), np.zeros(IDS.shape))
    return _classifier(model, type(model).forward, batch=batch)


#: By its name each framework, in the order of the table.
KINDS: Final = {
    "NumPy, the reference": Kind((), reference),
    "PyTorch": Kind(("torch", "transformers"), pytorch),
    "TensorFlow, Keras 2": Kind(("tensorflow", "tf_keras", "transformers"), tensorflow),
    "JAX, Flax NNX": Kind(("jax", "flax"), jax),
    "Gluon": Kind(("mxnet", "gluonnlp"), gluon),
    "Keras 3 on PyTorch": Kind(("torch", "keras_hub"), keras, "torch"),
    "Keras 3 on TensorFlow": Kind(("tensorflow", "keras_hub"), keras, "tensorflow"),
    "Keras 3 on JAX": Kind(("jax", "keras_hub"), keras, "jax"),
}


def _sizes() -> dict[str, int]:
    sizes = {"num_hidden_layers": LAYERS, "hidden_size": DIM, "intermediate_size": DIM, "num_attention_heads": 2}
    return {**sizes, "vocab_size": VOCAB, "max_position_embeddings": DIM}


def _drawn(framework: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return load_bert(drawn_bert(Path(folder) / "bert", layers=LAYERS, dim=DIM, vocab=VOCAB), framework)


def _classifier(model: Any, forward: Any, *, batch: Any = IDS, own: str | None = None) -> Classifier:
    return Classifier(model, batch, embgrad.CrossEntropy([0, 1]), inspect.unwrap(forward).__code__, own)

"""Ports of the references: the same weights in another framework or in other code, which agree where nothing is planted."""

from __future__ import annotations

import copy
import functools
import importlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import transformers

import embgrad
from embgrad import TokenBatch
from tests.cross.ports import architectures
from tests.cross.ports.architectures import ARCHITECTURES, Forward, reference, token_batch


@dataclass(frozen=True)
class Port:
    """A way of porting a reference.

    Attributes:
        architecture: a key of `ARCHITECTURES`.
        framework: "keras" (keras-hub on the backend that KERAS_BACKEND names), "flax" and "tensorflow" (transformers' own
            classes), "gluon", "jax" and "torch" (`embgrad.load_bert`), "copy" (of the reference) or "own" (written anew in
            PyTorch).
        build: makes the port of a reference.
        batch: puts a batch of the reference into the form that the port takes.
        forward: runs the port, and returns what is compared.
    """

    architecture: str
    framework: str
    build: Callable[[Any], Any]
    batch: Callable[[TokenBatch], TokenBatch]
    forward: Forward

    @property
    def name(self) -> str:
        return f"{self.architecture}-{self.framework}"


@dataclass(frozen=True)
class Pair:
    """A reference and a port of it, with the batch that both are given, each in its own form."""

    reference: Any
    port: Any
    batch: TokenBatch
    port_batch: TokenBatch
    way: Port

    def outputs(self) -> tuple[np.ndarray, np.ndarray]:
        """Return both outputs at positions that are real."""
        a = architectures.forward(self.way.architecture)(self.reference, self.batch)
        b = np.asarray(self.way.forward(self.port, self.port_batch))
        return architectures.compared(self.batch, a), architectures.compared(self.batch, b)

    def difference(self) -> float:
        """Return how far the port's output is from the reference's, relative in the L2 norm."""
        return architectures.difference(*self.outputs())


def pair(architecture: str, framework: str, seed: int = 0, side: str = "right") -> Pair:
    """Return a healthy pair.

    Args:
        architecture: a key of `ARCHITECTURES`.
        framework: a framework of the architecture's ports.
        seed: of weights and ids.
        side: on which the batch is padded.
    """
    way = PORTS[f"{architecture}-{framework}"]
    first = reference(architecture, seed)
    batch = token_batch(architecture, seed, side)
    return Pair(first, way.build(first), batch, way.batch(batch), way)


def saved(model: Any, folder: str) -> Path:
    """Return the folder with a reference as Hugging Face saves it, without its tokenizer."""
    model.save_pretrained(folder)
    return Path(folder)


def _unchanged(batch: TokenBatch) -> TokenBatch:
    return batch


def _gluonnlp(batch: TokenBatch) -> TokenBatch:
    return batch.replace(convention="gluonnlp")


def _of_huggingface(prefix: str, architecture: str, first: Any) -> Any:
    """Return transformers' own class of a framework with the reference's weights."""
    name = ARCHITECTURES[architecture].model
    port = getattr(transformers, f"{prefix}{name}")
    with tempfile.TemporaryDirectory() as folder:
        return port.from_pretrained(saved(first, folder), from_pt=True)


def _run_flax(architecture: str, model: Any, batch: TokenBatch) -> np.ndarray:
    inputs = batch.inputs()
    return np.asarray(model(**inputs)[ARCHITECTURES[architecture].output])


def _run_tensorflow(architecture: str, model: Any, batch: TokenBatch) -> np.ndarray:
    inputs = {name: value.astype(np.int32) for name, value in batch.inputs().items()}
    return np.asarray(model(inputs, training=False)[ARCHITECTURES[architecture].output])


def _load_bert(framework: str, first: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        return embgrad.load_bert(saved(first, folder), framework)


def _run_gluon(model: Any, batch: TokenBatch) -> np.ndarray:
    import mxnet

    ids, types, lengths = (mxnet.nd.array(part) for part in batch.inputs())
    return np.asarray(model(ids, types, lengths)[0].asnumpy())


def _run_nnx(model: Any, batch: TokenBatch) -> np.ndarray:
    return np.asarray(model(**batch.inputs())["last_hidden_state"])


def _ports() -> dict[str, Port]:
    ports = [
        *(
            Port(
                name,
                "flax",
                functools.partial(_of_huggingface, "Flax", name),
                _unchanged,
                functools.partial(_run_flax, name),
            )
            for name in FLAX
        ),
        *(
            Port(
                name,
                "tensorflow",
                functools.partial(_of_huggingface, "TF", name),
                _unchanged,
                functools.partial(_run_tensorflow, name),
            )
            for name in TENSORFLOW
        ),
        Port("bert", "gluon", functools.partial(_load_bert, "gluon"), _gluonnlp, _run_gluon),
        Port("bert", "jax", functools.partial(_load_bert, "jax"), _unchanged, _run_nnx),
        Port("bert", "torch", functools.partial(_load_bert, "torch"), _unchanged, architectures.forward("bert")),
        *(Port(name, "copy", copy.deepcopy, _unchanged, architectures.forward(name)) for name in ARCHITECTURES),
        *(Port(name, "keras", *_keras(name)) for name in KERAS),
        *(Port(name, "own", _own, _unchanged, architectures.forward(name)) for name in OWN),
    ]
    return {port.name: port for port in ports}


def _keras(name: str) -> tuple[Callable[..., Any], ...]:
    """Return how keras-hub's port is built, given a batch and run; keras-hub is imported where one is built."""

    def lent(function: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return getattr(importlib.import_module("tests.cross.ports.ports_keras"), function)(name, *arguments)

        return call

    return lent("build"), lent("keras_batch"), lent("run")


def _own(first: Any) -> Any:
    from tests.cross.ports.own_decoder import own_decoder

    return own_decoder(first)


#: The architectures of which transformers has a class in Flax, and in TensorFlow.
FLAX: Final = ("bert", "bert-lm", "roberta", "distilbert", "albert", "gpt2", "gpt2-lm", "llama", "t5", "bart")
TENSORFLOW: Final = ("bert", "bert-lm", "roberta", "distilbert", "albert", "gpt2", "gpt2-lm", "t5", "bart")

#: The architectures that keras-hub has, and those that the decoder in PyTorch can be.
KERAS: Final = (
    *("bert", "roberta", "distilbert", "albert", "gpt2", "gpt2-lm", "llama", "llama-lm", "llama3", "mistral"),
    *("qwen2", "qwen3", "gemma2", "gemma2-lm", "phi3", "gpt-neox", "t5", "bart"),
)
OWN: Final = ("llama", "llama-lm", "llama3", "mistral", "qwen2", "qwen3", "gemma2", "gemma2-lm", "phi3")

#: Every port by its name. A port that another runtime makes of the reference is added here by its framework.
PORTS: Final[Mapping[str, Port]] = _ports()

"""Small models of keras-hub with random weights, the same on every Keras backend, and batches for them.

Of frameworks only Keras and keras-hub are imported: the environment variable KERAS_BACKEND decides what the models run on.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import keras_hub
import numpy as np

import embgrad

__all__ = [
    *("DIM", "IDS", "LAYERS", "MODELS", "SIDES", "VOCAB", "Entry"),
    *("batch", "build", "draw_weights", "load", "objective", "save", "set_weights", "weights"),
]

#: The number of rows of every word table; 0 is padding.
VOCAB: Final = 20

#: The number of columns of every table.
DIM: Final = 8

#: The number of layers of every model.
LAYERS: Final = 2

#: Ids of three examples, all real.
IDS: Final = np.array([[2, 7, 4, 9, 3], [5, 6, 3, 11, 13], [2, 15, 8, 17, 3]])

_ENCODER: Final = {
    "vocabulary_size": VOCAB, "num_layers": LAYERS, "num_heads": 2, "hidden_dim": DIM, "intermediate_dim": 12,
    "max_sequence_length": 16,
}  # fmt: skip
_DECODER: Final = {
    "vocabulary_size": VOCAB, "num_layers": LAYERS, "num_query_heads": 2, "num_key_value_heads": 1, "hidden_dim": DIM,
    "intermediate_dim": 12,
}  # fmt: skip
_SIZES: Final[Mapping[str, Mapping[str, int]]] = {
    "Bert": _ENCODER,
    "Roberta": _ENCODER,
    "DistilBert": _ENCODER,
    "GPT2": _ENCODER,
    "Gemma": {**_DECODER, "head_dim": 4},
    "Gemma3": {**_DECODER, "head_dim": 4, "image_size": 8},
    "Llama": _DECODER,
}


@dataclass(frozen=True)
class Entry:
    """A model of keras-hub.

    Attributes:
        family: the beginning of its class's name, such as "Bert".
        task: the rest of it: "Backbone", "TextClassifier", "MaskedLM" or "CausalLM".
    """

    family: str
    task: str

    @property
    def name(self) -> str:
        """The class's name in `keras_hub.models`."""
        return f"{self.family}{self.task}"

    @property
    def roles(self) -> frozenset[str]:
        """The roles that `embgrad.points` finds in it."""
        added = {"Bert": ("position", "type"), "Roberta": ("position",), "DistilBert": ("position",)}
        added["GPT2"] = ("position",)
        layers = [f"layer.{number}" for number in (*range(LAYERS), -1)]
        return frozenset(("word", "embeddings", *added.get(self.family, ()), *layers))

    @property
    def output(self) -> str:
        """The role of the output that a gradient is taken of."""
        return "sequence" if self.name == "BertBackbone" else "logits"

    @property
    def widest(self) -> str:
        """The widest dtype in which it computes: Gemma adds float32 to its hidden states."""
        return "float32" if self.family.startswith("Gemma") else "float64"

    def build(self, dtype: str = "float32") -> Any:
        """Return the model with weights that depend on their paths and shapes alone."""
        sizes = _SIZES[self.family]
        backbone = getattr(keras_hub.models, f"{self.family}Backbone")(**sizes, dropout=0.1, dtype=dtype)
        model = backbone
        if self.task != "Backbone":
            options: dict[str, Any] = {"num_classes": 3} if self.task == "TextClassifier" else {}
            task = getattr(keras_hub.models, self.name)
            model = task(backbone=backbone, preprocessor=None, **options)
        draw_weights(model)
        return model


_TASKS: Final = {
    "Backbone": tuple(_SIZES),
    "TextClassifier": ("Bert", "Roberta", "DistilBert"),
    "MaskedLM": ("Bert", "Roberta", "DistilBert"),
    "CausalLM": ("GPT2", "Gemma", "Gemma3", "Llama"),
}

#: The models by the names of their classes.
MODELS: Final[Mapping[str, Entry]] = {
    entry.name: entry for task, families in _TASKS.items() for entry in (Entry(family, task) for family in families)
}


def build(name: str, dtype: str = "float32") -> Any:
    """Return a model of `MODELS` with its random weights."""
    return MODELS[name].build(dtype)


def _drawn(path: str, initial: np.ndarray) -> np.ndarray:
    """Return random values for a weight: of a vector near its initial values, which are zeros or ones."""
    noise = np.random.default_rng(zlib.crc32(path.encode())).normal(size=initial.shape)
    value = initial + 0.1 * noise if initial.ndim == 1 else 0.4 * noise
    return np.asarray(value, initial.dtype)


# Batches


def _mask(side: str) -> np.ndarray:
    """Return a mask with 0, 2 and 1 masked positions in its three examples, at the left or at the right."""
    lengths = np.array([5, 3, 4])[:, None]
    columns = np.arange(IDS.shape[1])[None]
    return np.asarray(columns >= 5 - lengths if side == "left" else columns < lengths, np.int32)


def batch(model: Any, side: str | None = "right", *, types: bool = True) -> dict[str, np.ndarray]:
    """Return a batch in keras-hub's convention, with the keys that the model declares.

    Args:
        model: a model of `MODELS`.
        side: where examples are padded, "left" or "right"; None for a batch without padding.
        types: whether the batch has `segment_ids`, where the model declares them.
    """
    mask = np.ones_like(IDS, np.int32) if side is None else _mask(side)
    given = {
        "token_ids": np.where(mask == 1, IDS, 0).astype(np.int32),
        "padding_mask": mask,
        "segment_ids": np.where(np.arange(IDS.shape[1]) > 2, mask, 0),
        "mask_positions": np.array([[1, 2], [2, 2], [2, 3]], np.int32),
    }
    declared = set(model.input) if types else set(model.input) - {"segment_ids"}
    return {name: value for name, value in given.items() if name in declared}


#: The sides on which `batch` pads.
SIDES: Final[tuple[str | None, ...]] = ("right", "left", None)


#: Random directions of a hidden state, and of all logits of a masked language model, of two positions each.
HIDDEN: Final = np.random.default_rng(3).normal(size=DIM)
MASKED: Final = np.random.default_rng(4).normal(size=2 * VOCAB)

#: Labels of the examples, and of their positions.
CLASSES: Final = np.array([2, 0, 1])
WORDS: Final = np.random.default_rng(5).integers(1, VOCAB, IDS.shape)


def objective(name: str, mask: np.ndarray) -> embgrad.Objective:
    """Return an objective for a model of `MODELS`, and for a batch with this mask."""
    entry = MODELS[name]
    if entry.task == "TextClassifier":
        return embgrad.CrossEntropy(CLASSES)
    if entry.task == "CausalLM":
        return embgrad.CrossEntropy(np.where(mask == 1, WORDS, -100))
    return embgrad.Projection(MASKED) if entry.task == "MaskedLM" else embgrad.Projection(HIDDEN, output=entry.output)


# Weights


def draw_weights(model: Any) -> None:
    """Give the model random weights that depend on their paths and shapes alone."""
    set_weights(model, {path: _drawn(path, value) for path, value in weights(model).items()})


def weights(model: Any) -> dict[str, np.ndarray]:
    """Return the model's weights by their paths, which are the same on every Keras backend."""
    return {weight.path: np.array(weight.numpy()) for weight in model.weights}


def set_weights(model: Any, values: Mapping[str, np.ndarray]) -> None:
    """Give each weight of the model the value of its path."""
    own = {weight.path: weight for weight in model.weights}
    assert own.keys() == values.keys(), sorted(own.keys() ^ values.keys())
    for path, weight in own.items():
        weight.assign(values[path])


def save(model: Any, file: str | Path) -> None:
    """Write the model's weights to an .npz file."""
    np.savez(file, **weights(model))  # type: ignore[arg-type]  # names of arrays, none of which is an option of NumPy's


def load(model: Any, file: str | Path) -> None:
    """Give the model the weights of an .npz file that `save` wrote."""
    with np.load(file) as values:
        set_weights(model, dict(values))

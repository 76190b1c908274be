"""Run a TF Hub preprocessing model: a model that takes a batch of strings and returns an encoder's three inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.errors import BatchError

__all__ = ["is_preprocessor", "preprocess"]

#: The packages whose callables take tensors of strings.
PACKAGES: Final = frozenset({"keras", "tensorflow", "tensorflow_hub", "tf_keras"})


def is_preprocessor(tokenizer: object) -> bool:
    """Return whether a callable is a TensorFlow or Keras model, by its type, without importing either."""
    return any(base.__module__.partition(".")[0] in PACKAGES for base in type(tokenizer).__mro__)


def preprocess(tokenizer: Any, examples: Sequence[tuple[str, ...]]) -> list[dict[str, np.ndarray]]:
    """Return the preprocessing model's outputs for each example, under its own keys.

    Pairs are encoded with its `tokenize` and `bert_pack_inputs`, as TF Hub documents for its preprocessing models.
    """
    singles = [number for number, example in enumerate(examples) if len(example) == 1]
    pairs = [number for number, example in enumerate(examples) if len(example) == 2]
    rows: dict[int, dict[str, np.ndarray]] = {}
    if singles:
        outputs = tokenizer(np.array([examples[number][0] for number in singles]))
        rows |= dict(zip(singles, _rows(outputs, len(singles)), strict=True))
    if pairs:
        model = getattr(tokenizer, "resolved_object", tokenizer)  # of a hub.KerasLayer
        if not (hasattr(model, "tokenize") and hasattr(model, "bert_pack_inputs")):
            raise BatchError(
                f"example {pairs[0]} is a pair of texts, and the preprocessing model of type {type(tokenizer).__name__} has no "
                "tokenize and bert_pack_inputs that would take it: expected single texts; or give a tokenizer"
            )
        parts = [model.tokenize(np.array([examples[number][side] for number in pairs])) for side in (0, 1)]
        rows |= dict(zip(pairs, _rows(model.bert_pack_inputs(parts), len(pairs)), strict=True))
    return [rows[number] for number in range(len(examples))]


def _rows(outputs: Any, count: int) -> list[dict[str, np.ndarray]]:
    if not isinstance(outputs, Mapping):
        raise BatchError(
            f"the preprocessing model returned {type(outputs).__name__}: expected a dict of ids, mask and types, such as "
            "input_word_ids, input_mask and input_type_ids"
        )
    arrays = {str(key): to_numpy(value) for key, value in outputs.items()}
    return [{key: array[number] for key, array in arrays.items()} for number in range(count)]

"""The batch in the structure of the inputs that a Keras model declares, whichever framework Keras runs on."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.keras.inputs import fill

IDS = np.array([[5, 7, 2], [3, 0, 0]])
MASK = (IDS != 0).astype(np.int64)
TYPES = np.array([[0, 1, 1], [0, 0, 0]])
EXTRA = np.array([[1], [2]])


def declared(name: str, optional: bool = False) -> Any:
    """Return what stands for a symbolic tensor of Keras 3."""
    return SimpleNamespace(name=name, dtype="int32", _keras_history=(SimpleNamespace(optional=optional), 0, 0))


BERT = {name: declared(name) for name in ("token_ids", "segment_ids", "padding_mask")}
GPT2 = {name: declared(name) for name in ("token_ids", "padding_mask")}


def native(structure: Any, batch: embgrad.TokenBatch) -> tuple[Any, tuple[str, ...]]:
    return fill(structure, batch, lambda name, value, dtype: np.asarray(value, dtype))


def same(actual: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    assert list(actual) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(actual[name], value)


def test_every_declared_input_is_filled() -> None:
    """A graph of layers cannot be called without them: what was not given is of one type, and all real."""
    inputs, unused = native(BERT, embgrad.TokenBatch(IDS, MASK, TYPES))
    same(inputs, {"token_ids": IDS, "segment_ids": TYPES, "padding_mask": MASK})
    assert unused == ()
    same(
        native(BERT, embgrad.TokenBatch(IDS))[0],
        {"token_ids": IDS, "segment_ids": np.zeros_like(IDS), "padding_mask": np.ones_like(IDS)},
    )


def test_nothing_is_passed_that_is_not_declared() -> None:
    """Keras tells the inputs of a graph of layers apart by their order, and would mistake one for another."""
    inputs, unused = native(GPT2, embgrad.TokenBatch(IDS, MASK, TYPES, extras={"mask_positions": EXTRA}))
    same(inputs, {"token_ids": IDS, "padding_mask": MASK})
    assert unused == ("types", "mask_positions")


def test_optional_inputs_are_none_where_nothing_was_given() -> None:
    structure = {**GPT2, "segment_ids": declared("segment_ids", True), "labels": declared("labels", True)}
    inputs, _ = native(structure, embgrad.TokenBatch(IDS))
    assert (inputs["segment_ids"], inputs["labels"]) == (None, None)
    np.testing.assert_array_equal(inputs["padding_mask"], np.ones_like(IDS))
    inputs, unused = native(structure, embgrad.TokenBatch(IDS, MASK, TYPES, extras={"labels": EXTRA}))
    same(inputs, {"token_ids": IDS, "padding_mask": MASK, "segment_ids": TYPES, "labels": EXTRA})
    assert unused == ()


def test_the_structure_is_kept() -> None:
    inputs, _ = native([declared("ids"), {"padding_mask": declared("m")}], embgrad.TokenBatch(IDS, MASK))
    np.testing.assert_array_equal(inputs[0], IDS)
    same(inputs[1], {"padding_mask": MASK})


def test_an_input_without_a_value_is_named() -> None:
    with pytest.raises(embgrad.errors.BatchError, match="the model needs 'mask_positions', which has no default"):
        native({**BERT, "mask_positions": declared("mask_positions")}, embgrad.TokenBatch(IDS))

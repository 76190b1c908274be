"""What objectives that name classes must be, with a model of transformers in any framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import transformers

import embgrad
from embgrad.errors import ObjectiveError

SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12}
NAMES = ["negative", "neutral", "positive"]


def expect_names_of_config(make: Callable[[Any], Any]) -> None:
    """Expect classes by the names of a config to be those by index, and a name that is near to be suggested.

    Args:
        make: returns a classifier of a config.
    """
    config = transformers.BertConfig(
        **SMALL, id2label=dict(enumerate(NAMES)), label2id={name: index for index, name in enumerate(NAMES)}
    )
    model = make(config)
    ids = np.array([[2, 7, 9], [4, 1, 3]])
    for named, by_index in (
        (embgrad.Logit("positive"), embgrad.Logit(2)),
        (embgrad.CrossEntropy(["neutral", "negative"]), embgrad.CrossEntropy([1, 0])),
        (embgrad.BinaryCrossEntropy([["positive", "neutral"], []]), embgrad.BinaryCrossEntropy([[0, 1, 1], [0, 0, 0]])),
    ):
        made, expected = (embgrad.gradients(model, {"input_ids": ids}, objective) for objective in (named, by_index))
        np.testing.assert_array_equal(made.values, expected.values)
        assert made.provenance["objective"] == expected.provenance["objective"]
    with pytest.raises(ObjectiveError, match="Did you mean 'positive'"):
        embgrad.gradients(model, {"input_ids": ids}, embgrad.Logit("positiv"))

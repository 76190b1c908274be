"""Classes by the names of a config of transformers."""

from __future__ import annotations

import transformers

from tests.support.class_names import expect_names_of_config


def test_names_are_those_of_the_config() -> None:
    expect_names_of_config(transformers.TFBertForSequenceClassification)

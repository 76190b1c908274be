"""The zoo's own comparison: it finds right models equal, and notices a wrong gradient and a changed model."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import embgrad
from tests.zoo import transformers_models
from tests.zoo.comparing import Row
from tests.zoo.hand_torch import TorchHand
from tests.zoo.worker import examined


def row(name: str) -> Any:
    return examined(Row(name, name, "torch"), transformers_models, TorchHand())


@pytest.mark.parametrize("name", ["BertForSequenceClassification", "LlamaForCausalLM", "T5ForConditionalGeneration"])
def test_architectures_are_equal(name: str) -> None:
    made = row(name)
    assert (made.unchecked, made.layer, made.changed) == ("", "", [])
    assert {check["status"] for check in made.checks.values()} == {"equal"}
    assert len(made.checks) == (3 if name == "BertForSequenceClassification" else 4)
    assert set(made.roles) >= {"word", "embeddings", "layer.0", "layer.-1"}


def test_a_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = embgrad.gradients

    def wrong(model: Any, batch: Any, objective: Any, **options: Any) -> Any:
        result = right(model, batch, objective, **options)
        values = result.values.copy()
        values[1, 0, 3] += 1e-4 * abs(values).sum()
        return dataclasses.replace(result, values=values)

    monkeypatch.setattr(embgrad, "gradients", wrong)
    statuses = {name: check["status"] for name, check in row("BertModel").checks.items()}
    assert statuses == {"word": "wrong", "layer.-1": "wrong", "attribute": "equal"}

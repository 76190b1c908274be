"""Models that compute in half precision inside, while the lookup and the output are float32: the result says so."""

from __future__ import annotations

import copy
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

import embgrad

IDS = np.random.default_rng(0).integers(5, 60, (2, 8))
OBJECTIVE = embgrad.Margin(1, against=0)
SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


def bert() -> Any:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SIZES)).eval()


class Inside(torch.nn.Module):
    """A model with autocast around a part of its pass: after the lookup, and before the output."""

    def __init__(self, dtype: Any, way: str) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(60, 16)
        self.inner, self.head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 2)
        self.dtype, self.way = dtype, way

    def forward(self, input_ids: Any) -> Any:
        hidden = self.table(input_ids)
        with torch.autocast("cpu", dtype=self.dtype):
            if self.way == "linear":
                hidden = self.inner(hidden)
            elif self.way == "product":
                hidden = hidden @ self.inner.weight
            else:
                hidden = torch.nn.functional.scaled_dot_product_attention(hidden, hidden, hidden)
        return self.head(hidden.float().mean(1))


@pytest.mark.parametrize("at", ["word", "layer.0", "layer.-1"])
def test_a_wrapped_forward_is_recorded_as_it_computes(at: str) -> None:
    model = bert()
    wrapped = accelerate.Accelerator(cpu=True, mixed_precision="bf16").prepare(copy.deepcopy(model))
    result = embgrad.gradients(wrapped, IDS, OBJECTIVE, at=at)
    assert result.provenance["compute_dtype"] == "bfloat16"
    plain = embgrad.gradients(model, IDS, OBJECTIVE, at=at)
    assert plain.provenance["compute_dtype"] == "float32"
    comparison = embgrad.compare(plain, result, models=(model, model))
    assert not comparison.agrees
    assert ["b was computed in bfloat16" in str(finding) for finding in comparison.findings] == [True]


@pytest.mark.parametrize("way", ["linear", "product", "attention"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_around_a_part_of_a_pass(dtype: Any, way: str) -> None:
    torch.manual_seed(0)
    model = Inside(dtype, way)
    result = embgrad.gradients(model, IDS, OBJECTIVE)
    assert result.provenance["compute_dtype"] == str(dtype).removeprefix("torch.")
    with embgrad.capture(model) as tap:
        model(torch.tensor(IDS)).sum().backward()
    assert tap.steps[0].provenance["compute_dtype"] == str(dtype).removeprefix("torch.")

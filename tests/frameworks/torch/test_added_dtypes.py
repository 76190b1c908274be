"""Inputs of the dtypes that ml_dtypes adds to NumPy, such as bfloat16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn

import embgrad

IDS = np.array([[3, 5, 8], [2, 7, 1]])

#: The dtypes that the model was given.
SEEN: list[Any] = []


class Net(nn.Module):
    """The sum of the looked-up numbers times a further input of one number for each example."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 2)

    def forward(self, input_ids: Any, factors: Any) -> Any:
        SEEN.append(factors.dtype)
        return self.words(input_ids).sum((1, 2))[:, None] * factors.float()[:, None]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_numbers_keep_their_dtype_and_value(name: str) -> None:
    model, factors = Net(), np.array([1.5, -0.25], getattr(ml_dtypes, name))
    found = embgrad.gradients(model, embgrad.TokenBatch(IDS, extras={"factors": factors}), embgrad.Logit(0))
    assert SEEN[-1] is getattr(torch, name)
    np.testing.assert_array_equal(found.values[:, 0, 0], [1.5, -0.25])


@pytest.mark.parametrize("name", ["int4", "float8_e3m4"])
def test_a_dtype_that_pytorch_lacks_is_refused(name: str) -> None:
    batch = embgrad.TokenBatch(IDS, extras={"factors": np.ones(2, getattr(ml_dtypes, name))})
    with pytest.raises(
        embgrad.errors.BatchError,
        match=rf"an input holds numbers of dtype {name}, which PyTorch does not have\. Pass it as float32",
    ):
        embgrad.gradients(Net(), batch, embgrad.Logit(0))

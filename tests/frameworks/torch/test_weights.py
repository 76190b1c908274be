"""The weights of PyTorch models: buffers, tied and compiled ones, several parts, a graph that the user holds, BERTs."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import embgrad
from embgrad.engine.weights import depth_of, substitute, weights_of

IDS = [[3, 5, 7, 2], [4, 1, 6, 8]]


def net(**options: object) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.BatchNorm1d(24), nn.Linear(24, 3), **options)


def test_parameters_and_floating_buffers_by_path() -> None:
    model = net()
    model[3].weight.requires_grad_(False)
    result = {weight.name: weight for weight in weights_of(model)}
    expected = {"0.weight", "2.weight", "2.bias", "2.running_mean", "2.running_var", "3.weight", "3.bias"}
    assert result.keys() == expected  # not num_batches_tracked, which is a whole number
    assert {one.module for one in result.values()} == {"0", "2", "3"}
    assert depth_of(model) == 2


def test_bfloat16_and_inference_tensors() -> None:
    with torch.inference_mode():
        model = net().bfloat16().eval()
    before = model[3].weight.clone()
    (weight,) = (weight for weight in weights_of(model) if weight.name == "3.weight")
    assert weight.dtype == "bfloat16"
    assert weight.get().dtype == np.float32
    with substitute(model, {"3.weight": weight.get() * 2}):
        assert not torch.equal(model[3].weight, before)
    assert torch.equal(model[3].weight, before)


def test_tied_weights_come_once_and_a_compiled_model_sees_them() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(20, 6)
            self.head = nn.Linear(6, 20, bias=False)
            self.head.weight = self.table.weight
            self.other = nn.Linear(6, 20, bias=False)
            self.other.weight = nn.Parameter(self.table.weight.data)  # another object on the same memory

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.table(ids)).sum(1)

    model = torch.compile(Tied())
    (only,) = weights_of(model)
    assert (only.name, only.module) == ("table.weight", "table")
    before = embgrad.gradients(model, IDS, embgrad.Sum())
    with substitute(model, {"table.weight": only.get() * 2}):
        np.testing.assert_allclose(embgrad.gradients(model, IDS, embgrad.Sum()).values, before.values * 2, rtol=1e-6)
    np.testing.assert_array_equal(embgrad.gradients(model, IDS, embgrad.Sum()).values, before.values)

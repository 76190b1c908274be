"""Changes at a shared layer, and what they leave in memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import embgrad
from tests.frameworks.torch.checks import IDS, Layers, tensor


def net(**options: Any) -> Layers:
    torch.manual_seed(0)
    return Layers(**options).double().eval()


def test_one_call_of_a_shared_layer_is_changed() -> None:
    model, new = net(shared=True), np.random.default_rng(5).normal(size=(2, 4, 4))
    rows = hidden = model.table(tensor())
    for number, layer in enumerate(model.layers):
        hidden = layer(hidden)[0] + (torch.tensor(new) if number == 1 else 0)
    logits = model.head(hidden.tanh().mean(1))[:, 1]
    result = embgrad.gradients(model, IDS, embgrad.Logit(1), add={"layer.1": new})
    np.testing.assert_allclose(result.objective, logits.detach().numpy(), rtol=1e-12)
    expected = torch.autograd.grad(logits.sum(), rows)[0].numpy()
    np.testing.assert_allclose(result.values, expected, rtol=1e-12, atol=1e-14)


def number_of_tensors() -> int:
    return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())


@pytest.mark.parametrize("option", ["override", "add", "edit"])
def test_a_pass_is_freed_when_it_ends(option: str) -> None:
    """Many steps in a row, as integrated gradients make them, hold no more memory than a single one."""
    model = net()
    gc.collect()
    before = number_of_tensors()
    gc.disable()  # what refers to itself is freed by the collector alone, which runs when it likes
    try:
        embgrad.gradients(model, IDS, embgrad.Logit(1), **{option: {"word": lambda value: value * 2}})
        assert number_of_tensors() <= before
    finally:
        gc.enable()


def test_a_pass_is_freed_where_the_output_of_a_module_shares_the_memory_of_its_input() -> None:
    """Dropout returns its argument in evaluation mode; a cycle through PyTorch's graph is never found as garbage."""
    model = torch.nn.Sequential(
        torch.nn.Embedding(10, 4), torch.nn.Dropout(), torch.nn.Flatten(), torch.nn.Linear(12, 2)
    )
    alive: list[weakref.ref[Any]] = []
    model[3].register_forward_pre_hook(lambda module, given: alive.append(weakref.ref(given[0])))
    embgrad.gradients(model, [[1, 2, 3]], embgrad.Logit(1), at=["word", "1", "2"])
    gc.collect()
    assert alive
    assert all(reference() is None for reference in alive)

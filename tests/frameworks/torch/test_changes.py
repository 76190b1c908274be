"""Override, add and edit against PyTorch written by hand, and against finite differences."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import embgrad
from tests.frameworks.torch.checks import IDS, Layers, tensor

NEW = np.random.default_rng(5).normal(size=(2, 4, 4))


def net(**options: Any) -> Layers:
    torch.manual_seed(0)
    return Layers(**options).double().eval()


def by_hand(
    model: Layers, *, override: Any = None, add: Any = None, edit: Callable[[Any], Any] | None = None
) -> dict[str, np.ndarray]:
    """The gradients when layer 1's output is changed, without a module hook: the layers are called one by one."""
    states = [model.table(tensor())]
    for number, layer in enumerate(model.layers):
        states.append(layer(states[-1])[0])
        if number == 1:
            if override is not None:
                states[-1] = torch.tensor(override).requires_grad_()
            if add is not None:
                states[-1] = states[-1] + torch.tensor(add)
            if edit is not None:
                states[-1] = states[-1].clone()
                states[-1].register_hook(edit)
        states[-1].retain_grad()
    states[0].retain_grad()
    loss = model.head(states[-1].tanh().mean(1))[:, 1]
    loss.sum().backward()
    model.zero_grad()
    names = ["word", "layer.0", "layer.1", "layer.2"]
    result = {name: one.grad.numpy() for name, one in zip(names, states, strict=True) if one.grad is not None}
    return {**result, "loss": loss.detach().numpy()}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("change", ["nothing", "override", "add", "edit", "edit in place", "ablation"])
def test_a_layer_is_changed(shared: bool, change: str, training: bool) -> None:
    model = net(shared=shared)
    options: dict[str, Any] = {
        "nothing": {},
        "override": {"override": NEW},
        "add": {"add": NEW},
        "edit": {"edit": lambda grad: grad * 3 + 1},
        "edit in place": {"edit": lambda grad: grad * 3 + 1},
        "ablation": {"edit": lambda grad: grad * 0},
    }[change]
    given = {key: {"layer.1": value} for key, value in options.items()}
    if change == "edit in place":
        given = {"edit": {"layer.1": in_place}}
    expected = by_hand(model, **options)
    at = ["layer.1", "layer.2"] if change == "override" else ["word", "layer.0", "layer.1", "layer.2"]
    for split in (False, True):
        result = embgrad.gradients(model, IDS, embgrad.Logit(1), at=at, training=training, split=split, **given)
        for name in at:
            if split and change.startswith("edit"):
                continue  # what the edit adds is then added once for each example's own pullback
            if name == "layer.1" and "edit" in options:
                np.testing.assert_allclose(
                    result[name].values, options["edit"](by_hand(model)["layer.1"]), rtol=1e-12, atol=1e-14
                )
                np.testing.assert_allclose(result[name].before, by_hand(model)["layer.1"], rtol=1e-12, atol=1e-14)
            else:
                np.testing.assert_allclose(result[name].values, expected[name], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(result["layer.1"].objective, expected["loss"], rtol=1e-12)
    if change == "ablation":
        assert not any(result[name].values.any() for name in ("word", "layer.0", "layer.1"))


def in_place(grad: np.ndarray) -> None:
    grad *= 3
    grad += 1


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

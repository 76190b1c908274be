"""Modes, buffers, attributes and accumulated gradients of a model are restored, and training mode is the user's."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, Recomputing, finite_differences, own_gradient, tensor


class Net(nn.Module):
    """A table with `max_norm`, a recurrent layer, batch norm and dropout; in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4, max_norm=1.5)
        self.recurrent = nn.GRU(4, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)
        self.double().eval()

    def forward(self, x: Any) -> Any:
        return self.head(self.dropout(self.norm(self.recurrent(self.table(x))[0].mean(1))))


def net(kind: type[Net] = Net) -> Net:
    torch.manual_seed(0)
    return kind()


def test_training_mode_drops_and_normalises_as_the_users_call() -> None:
    """Dropout drops as in the user's own call with the same random numbers; batch norm takes the batch's averages."""
    model = net()
    model.table.max_norm = None
    torch.manual_seed(5)
    result = embgrad.gradients(model, IDS, embgrad.Logit(1), training=True)
    averages = model.norm.running_mean.clone()
    model.train()

    def loss() -> torch.Tensor:
        torch.manual_seed(5)
        return model(tensor())[:, 1].sum()

    expected = finite_differences(loss, model.table.weight)
    np.testing.assert_allclose(result.values, expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(model.norm.running_mean, averages)  # the user's own call moves them


def test_an_overridden_train_is_called() -> None:
    class Frozen(Net):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self.norm.eval()
            return self

    model = net(Frozen)
    model.dropout.p = 0.0
    model.table.max_norm = None
    result = embgrad.gradients(model, IDS, embgrad.Logit(1), training=True)
    assert not model.training
    expected = own_gradient(lambda: model(tensor())[:, 1].sum(), model.table.weight)
    np.testing.assert_allclose(result.values, expected, rtol=1e-12)


def test_max_norm_scales_the_rows_in_the_call_and_leaves_the_table_alone() -> None:
    model = net()
    before = model.table.weight.detach().clone()
    version = model.table.weight._version
    result = embgrad.gradients(model, IDS, embgrad.Logit(1))
    assert torch.equal(model.table.weight, before)
    assert model.table.weight._version == version
    assert np.linalg.norm(before.numpy()[IDS], axis=-1).max() > 1.6
    assert np.linalg.norm(result.activations, axis=-1).max() <= 1.5
    model.eval()
    model(tensor())  # PyTorch's own lookup scales the table, for good
    scaled = finite_differences(lambda: without_max_norm(model)[:, 1].sum(), model.table.weight)
    np.testing.assert_allclose(result.values, scaled, rtol=1e-6, atol=1e-8)


def without_max_norm(model: Net) -> Any:
    model.table.max_norm = None
    return model(tensor())


def test_an_objective_may_write_to_its_outputs() -> None:
    class Saved(Net):
        def forward(self, x: Any) -> Any:
            return super().forward(x).tanh()  # whose backward pass reads its output

    model = net(Saved)
    backend = embgrad.backend.list_backends()["torch"]

    def gradient(write: bool) -> Any:
        def respond(outputs: Any) -> Any:
            outputs[None][...] *= not write
            return [{None: np.ones(outputs[None].shape)}]

        run = backend.run(
            model, embgrad.TokenBatch(IDS), embgrad.backend.Request(("word",), (embgrad.backend.Callback(respond),))
        )
        return run.points["word"].gradients[0]

    np.testing.assert_array_equal(gradient(write=True), gradient(write=False))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 3)
        self.head = nn.Linear(3, 3)

    def forward(self, ids: Any) -> Any:
        return self.head(torch.tanh(self.embedding(ids)).sum(1))


def test_a_write_to_a_large_buffer_is_a_warning() -> None:
    class Caching(Small):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("large", torch.zeros(2**20 + 1))
            self.write = True

        def forward(self, x: Any) -> Any:
            if self.write:
                self.large += 1
            return super().forward(x) + self.large[0]

    model = Caching()
    with pytest.warns(embgrad.EmbgradWarning, match=r"wrote to a buffer of shape \(1048577,\) in evaluation mode"):
        embgrad.gradients(model, IDS, embgrad.Logit(1))
    model.write = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embgrad.gradients(model, IDS, embgrad.Logit(1))
    model.write = True
    before = model.large.clone()
    embgrad.gradients(model, IDS, embgrad.Logit(1), training=True)
    assert torch.equal(model.large, before)


class Keeping(Small):
    """As research code keeps things: in buffers, attributes, containers, the weights' memory, the weights' flags."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("cache", torch.zeros(2, 3))
        self.hidden, self.longest = torch.zeros(2, 3), 0
        self.maps: list[torch.Tensor] = []
        self.sums = {"all": torch.zeros(())}
        self.scale = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(ids)
        self.calls += 1
        self.average = 0.9 * self.average + 0.1 * rows.mean((0, 1))
        self.cache[:] = rows.mean(1)
        self.hidden = torch.tanh(self.hidden + self.cache)
        self.longest = max(self.longest, ids.shape[1])
        self.maps.append(rows)
        self.sums["all"] += rows.sum().detach()
        self.last = rows
        self.scale.data = self.scale.data * 2
        self.frozen.requires_grad_(False)
        return self.hidden * self.scale


def test_buffers_and_attributes_that_a_model_writes_are_restored() -> None:
    model = Keeping()
    tensors = [*model.buffers(), model.hidden, model.sums["all"]]
    objects, memory = [*model.buffers(), model.hidden, model.maps, model.sums], model.scale.data_ptr()
    first, second = (embgrad.gradients(model, IDS, embgrad.Sum()) for _ in range(2))
    np.testing.assert_array_equal(first.values, second.values)
    assert np.abs(first.values).max() > 0
    for before, after in zip(objects, [*model.buffers(), model.hidden, model.maps, model.sums], strict=True):
        assert after is before
    assert not any(kept.any() or kept.requires_grad for kept in tensors)
    assert model.sums["all"] is tensors[-1]
    assert (model.maps, model.longest, hasattr(model, "last")) == ([], 0, False)
    assert model.scale.data_ptr() == memory
    assert (model.scale == 1).all()
    assert model.frozen.requires_grad


class Merged(Small):
    """An adapter that is merged into the weights in evaluation mode, as LoRA's are."""

    def __init__(self) -> None:
        super().__init__()
        self.change = torch.full_like(self.embedding.weight, 1 / 3)
        self.merged = False

    def train(self, mode: bool = True) -> Merged:
        if self.merged is mode:
            self.embedding.weight.data += -self.change if mode else self.change
            self.merged = not mode
        return super().train(mode)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(ids)
        return torch.tanh(rows if self.merged else rows + self.change[ids]).sum(1)


def test_an_adapter_that_train_unmerges_is_merged_again() -> None:
    model = Merged().eval()
    before = model.embedding.weight.detach().clone()
    embgrad.gradients(model, IDS, embgrad.Sum(), at="embedding#0", training=True)
    assert model.merged
    assert not model.training
    assert torch.equal(model.embedding.weight, before)


class Checkpointing(Small):
    def forward(self, ids: Any) -> Any:
        return Recomputing.apply(torch.tanh(self.embedding(ids)).sum(1), self.head)


class Adapting(Small):
    """Goes backward in its forward pass."""

    def forward(self, ids: Any) -> Any:
        logits = super().forward(ids)
        logits.square().sum().backward(retain_graph=True)
        return logits * self.head.bias.grad.norm()


def _itself(logits: torch.Tensor) -> torch.Tensor:
    logits.sum().backward(retain_graph=True)
    return logits.sum(1)


@pytest.mark.parametrize(
    ("kind", "objective"),
    [(Small, _itself), (Checkpointing, embgrad.Sum()), (Checkpointing, _itself), (Adapting, embgrad.Sum())],
)
@pytest.mark.parametrize("raising", [False, True])
def test_accumulated_gradients_do_not_change(kind: Any, objective: Any, raising: bool) -> None:
    """A user who accumulates over several batches may ask in between."""
    model = kind()
    model(tensor()).sum().backward()
    before = [(parameter.grad, parameter.grad.clone(), parameter.grad._version) for parameter in model.parameters()]

    def edit(gradient: Any) -> Any:
        if raising:
            raise ValueError("stop")
        return gradient

    with pytest.raises(ValueError, match="stop") if raising else contextlib.nullcontext():
        embgrad.gradients(model, IDS, objective, edit={"word": edit})
    for one, (gradient, values, version) in zip(model.parameters(), before, strict=True):
        assert one.grad is gradient
        assert gradient._version == version
        assert torch.equal(gradient, values)


@pytest.mark.parametrize("option", ["override", "add", "edit"])
def test_a_backward_pass_in_a_function_keeps_accumulated_gradients(option: str) -> None:
    model = Small()
    model(tensor()).sum().backward()
    before = [(parameter.grad, parameter.grad.clone(), parameter.grad._version) for parameter in model.parameters()]
    result = []

    def function(values: Any) -> Any:
        with torch.enable_grad():  # a backward pass switches it off
            model(tensor()).square().sum().backward()
        result.append(not torch.equal(model.head.weight.grad, before[1][1]))
        return values

    embgrad.gradients(model, IDS, embgrad.Sum(), **{option: {"word": function}})
    assert result
    assert all(result)
    for one, (gradient, values, version) in zip(model.parameters(), before, strict=True):
        assert one.grad is gradient
        assert gradient._version == version
        assert torch.equal(gradient, values)

"""The model and the process are left as they were: after success, and after every kind of failure."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, Recomputing, finite_differences, own_gradient, tensor


class Net(nn.Module):
    """A model with everything that has a mode or a running average."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4, max_norm=1.5)
        self.recurrent = nn.GRU(4, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)
        self.break_down: BaseException | None = None

    def forward(self, x: Any) -> Any:
        states = self.recurrent(self.table(x))[0].mean(1)
        logits = self.head(self.dropout(self.norm(states)))
        if self.break_down is not None:
            raise self.break_down
        return logits


def disturbed() -> Net:
    """In both modes at once, with gradients in some buffers, hooks, and parts frozen."""
    torch.manual_seed(0)
    model = Net().double()
    model.norm.running_mean += 0.3
    model.eval()
    model.dropout.train()
    model.recurrent.train()
    model.recurrent.weight_ih_l0.grad = torch.ones_like(model.recurrent.weight_ih_l0)
    model.table.weight.grad = torch.full_like(model.table.weight, 2.0)
    model.norm.requires_grad_(False)
    model.head.register_forward_hook(lambda *_: None)
    model.head.weight.register_hook(lambda grad: None)
    return model


def test_training_mode_is_training_mode() -> None:
    """Dropout drops as in the user's own call with the same random numbers; batch norm takes the batch's averages."""
    model = disturbed()
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


def test_a_model_in_both_modes_stays_so_in_training() -> None:
    """Batch norm that the user froze in a model in training mode is not put into training mode."""
    model = disturbed().train()
    model.norm.eval()
    model.dropout.p = 0.0
    model.table.max_norm = None
    result = embgrad.gradients(model, IDS, embgrad.Logit(1), training=True)
    expected = own_gradient(lambda: model(tensor())[:, 1].sum(), model.table.weight)
    np.testing.assert_allclose(result.values, expected, rtol=1e-12)
    assert not model.norm.training


def test_a_train_of_the_users_own_is_asked() -> None:
    class Frozen(Net):
        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self.norm.eval()
            return self

    torch.manual_seed(0)
    model = Frozen().double().eval()
    model.dropout.p = 0.0
    model.table.max_norm = None
    result = embgrad.gradients(model, IDS, embgrad.Logit(1), training=True)
    assert not model.training
    expected = own_gradient(lambda: model(tensor())[:, 1].sum(), model.table.weight)
    np.testing.assert_allclose(result.values, expected, rtol=1e-12)


def test_max_norm_scales_the_rows_in_the_call_and_leaves_the_table_alone() -> None:
    model = disturbed()
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


class Stateful(nn.Module):
    """Buffers that are written to, replaced, and hung on the graph, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, 4)
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("cache", torch.zeros(2, 4))
        self.longest = 0

    def forward(self, x: Any) -> Any:
        rows = self.table(x).mean(1)
        self.calls += 1
        self.average = 0.9 * self.average + 0.1 * rows.mean(0)
        self.cache[:] = rows
        self.longest = max(self.longest, x.shape[1])
        return self.head(self.cache + 0)


def test_buffers_come_back_in_content_and_identity() -> None:
    torch.manual_seed(0)
    model = Stateful()
    before = {name: (id(value), value.clone()) for name, value in model.named_buffers()}
    result = embgrad.gradients(model, IDS, embgrad.Logit(1))
    assert np.abs(result.values).max() > 0
    for name, value in model.named_buffers():
        assert id(value) == before[name][0]
        assert torch.equal(value, before[name][1])
        assert value.grad_fn is None
        assert not value.requires_grad
    assert model.longest == 0  # it goes with the buffers


def test_a_buffer_too_large_to_be_kept_is_told_of() -> None:
    class Caching(Stateful):
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


def test_an_objective_may_write_to_the_outputs_that_it_is_given() -> None:
    class Saved(Net):
        def forward(self, x: Any) -> Any:
            return super().forward(x).tanh()  # whose backward pass reads its output

    torch.manual_seed(0)
    model = Saved().double()
    backend = embgrad.list_backends()["torch"]

    def gradient(write: bool) -> Any:
        def respond(outputs: Any) -> Any:
            outputs[None][...] *= not write
            return [{None: np.ones(outputs[None].shape)}]

        run = backend.run(model, embgrad.TokenBatch(IDS), embgrad.Request(("word",), respond, (None,)))
        return run.points["word"].gradients[0]

    np.testing.assert_array_equal(gradient(write=True), gradient(write=False))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, 3)
        self.head = nn.Linear(3, 3)

    def forward(self, ids: Any) -> Any:
        return self.head(torch.tanh(self.embedding(ids)).sum(1))


class Keeping(Small):
    """As research code keeps things: in plain attributes, in lists, in the weights' memory, in the weights' flags."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = torch.zeros(2, 3)
        self.seen = torch.zeros(1)
        self.maps: list[torch.Tensor] = []
        self.scale = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(3))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.embedding(ids)
        self.hidden = torch.tanh(self.hidden + rows.mean(1))
        self.seen += rows.sum().detach()
        self.maps.append(rows)
        self.last = rows
        self.scale.data = self.scale.data * 2
        self.frozen.requires_grad_(False)
        return self.hidden * self.scale


def test_what_a_model_keeps_from_call_to_call_is_what_it_was() -> None:
    model = Keeping()
    hidden, seen, maps, memory = model.hidden, model.seen, model.maps, model.scale.data_ptr()
    first = embgrad.gradients(model, IDS, embgrad.Sum())
    second = embgrad.gradients(model, IDS, embgrad.Sum())
    np.testing.assert_array_equal(first.values, second.values)
    assert model.hidden is hidden
    assert not hidden.any()
    assert model.seen is seen
    assert not seen.any()
    assert model.maps is maps
    assert maps == []
    assert not hasattr(model, "last")
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


def test_an_adapter_that_training_takes_out_of_the_weights_is_back_in_them() -> None:
    model = Merged().eval()
    before = model.embedding.weight.detach().clone()
    embgrad.gradients(model, IDS, embgrad.Sum(), at="embedding#0", training=True)
    assert model.merged
    assert not model.training
    assert torch.equal(model.embedding.weight, before)


class Shifting(Small):
    """Writes into what it is given."""

    def forward(self, input_ids: Any, scale: Any) -> Any:
        scale += 1
        return self.head(torch.tanh(self.embedding(input_ids) * scale[..., None]).sum(1))


@pytest.mark.parametrize("at", ["word", "embedding"])
def test_a_model_that_writes_into_its_inputs(at: str) -> None:
    """Each pass gets them as they were given, of which there are two where the point has to be found."""
    model, scale = Shifting(), torch.ones(IDS.shape)
    expected = own_gradient(lambda: model(tensor(), scale.clone())[:, 0].sum(), model.embedding.weight)
    found = embgrad.gradients(model, {"input_ids": IDS, "scale": scale}, embgrad.Logit(0), at=at)
    np.testing.assert_allclose(found.values, expected, rtol=1e-5, atol=1e-7)
    assert torch.equal(scale, torch.ones(IDS.shape))


@pytest.mark.parametrize("training", [False, True])
def test_frozen_modules_that_are_in_no_mode(training: bool) -> None:
    """`torch.jit.freeze` takes their `training` away."""
    model = Small()
    expected = embgrad.gradients(model, IDS, embgrad.Logit(0))
    model.head = torch.jit.freeze(torch.jit.script(model.head.eval()))
    model.training = training
    found = embgrad.gradients(model, IDS, embgrad.Logit(0))
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-5)
    assert model.training is training
    assert not hasattr(model.head, "training")


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
def test_gradients_that_are_being_accumulated_stay_what_they_are(kind: Any, objective: Any, raising: bool) -> None:
    """A user who accumulates over several batches may ask in between."""
    model = kind()
    model(tensor()).sum().backward()
    before = [(one.grad, one.grad.clone(), one.grad._version) for one in model.parameters()]

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


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("option", ["override", "add", "edit"])
def test_functions_at_points_that_go_backward_leave_what_is_being_accumulated(option: str, compiling: bool) -> None:
    model = Small()
    model(tensor()).sum().backward()
    before = [(one.grad, one.grad.clone(), one.grad._version) for one in model.parameters()]
    found = []

    def function(values: Any) -> Any:
        with torch.enable_grad():  # a backward pass switches it off
            model(tensor()).square().sum().backward()
        found.append(not torch.equal(model.head.weight.grad, before[1][1]))
        return values

    embgrad.gradients(model, IDS, embgrad.Sum(), compile=compiling, **{option: {"word": function}})
    assert found
    assert all(found)
    for one, (gradient, values, version) in zip(model.parameters(), before, strict=True):
        assert one.grad is gradient
        assert gradient._version == version
        assert torch.equal(gradient, values)


def test_a_model_that_reads_what_it_has_accumulated_finds_what_the_user_has() -> None:
    model = Adapting()
    model(tensor()).sum().backward()
    expected = copy.deepcopy(model)
    for one, own in zip(expected.parameters(), model.parameters(), strict=True):
        one.grad = own.grad.clone()
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    np.testing.assert_allclose(found.objective, expected(tensor()).sum(1).detach().numpy(), rtol=1e-5)


def test_a_data_loader_with_workers_of_its_own() -> None:
    """Its workers are forked while the model has been used, and go on beside it."""
    model, ids = Small(), torch.randint(1, VOCAB, (12, 5))
    expected = embgrad.gradients(model, ids, embgrad.Sum(), batch_size=3).values
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids), batch_size=3, num_workers=2)
    found = [embgrad.gradients(model, batch, embgrad.Sum()).values for (batch,) in loader]
    np.testing.assert_array_equal(np.concatenate(found), expected)

"""PyTorch models that carry a state from call to call, and objectives of several examples."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.support.company import LOGIT, ZERO, expect_of_own_number, expect_others_held, expect_state_of_one_number

IDS = np.array([[5, 6, 2], [7, 8, 1], [3, 3, 4]])


class Carry(nn.Module):
    """A GRU whose state goes on from call to call, kept in one of several ways, and reset for another number of examples."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.rnn = nn.Embedding(9, 4), nn.GRU(4, 4, batch_first=True)
        self.way = way
        self.kept: Any = {"attribute": None, "dict": {}, "deque": deque(maxlen=1), "written": torch.zeros(1, 3, 4)}.get(
            way
        )
        if way == "buffer":
            self.register_buffer("memory", torch.zeros(1, 3, 4))

    @property
    def state(self) -> Any:
        if self.way == "buffer":
            return self.memory
        if self.way == "dict":
            return self.kept.get("state")
        return (self.kept[0] if self.kept else None) if self.way == "deque" else self.kept

    @state.setter
    def state(self, value: Any) -> None:
        if self.way == "buffer":
            self.memory = value
        elif self.way == "written" and value.shape == self.state.shape:
            self.state.copy_(value)
        elif self.way == "dict":
            self.kept["state"] = value
        elif self.way == "deque":
            self.kept.append(value)
        elif self.way == "attribute":
            self.kept = value

    def forward(self, ids: Any) -> Any:
        before = self.state
        if before is None or before.shape[1] != len(ids):
            before = torch.zeros(1, len(ids), 4)
        out, state = self.rnn(self.table(ids), before.clone())
        self.state = state.detach()
        return out[:, -1]


@pytest.mark.parametrize("way", ["attribute", "dict", "deque", "buffer", "written"])
def test_a_state_that_goes_on_from_call_to_call(way: str) -> None:
    model = Carry(way).eval()
    with torch.no_grad():
        model(torch.tensor(IDS[::-1].copy()))
        state = model.state.clone()
        own = model(torch.tensor(IDS))[:, 1].numpy()
        model.state = state
    # A state that is written in place stays as it is in a pass of another number of examples.
    expect_of_own_number(model, IDS, own, cut=way != "written")
    assert torch.equal(model.state, state)


class OfOneNumber(nn.Module):
    """A sum of rows that begins with what it kept, in a pass of as many examples alone."""

    def __init__(self, way: str, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)
        self.way = way
        state = torch.randn(count, 4)
        if way in ("buffer", "written buffer"):
            self.register_buffer("state", state)
        else:
            self.state = [state] if way == "list" else state

    def forward(self, ids: Any) -> Any:
        rows, state = self.table(ids).sum(1), self.state[0] if self.way == "list" else self.state
        if len(state) != len(ids):
            return self.head(rows.tanh())
        out = (rows + state.clone()).tanh()
        if self.way == "list":
            self.state[:] = [out.detach()]
        elif self.way.startswith("written"):
            state.copy_(out.detach())
        else:
            self.state = out.detach()
        return self.head(out)


@pytest.mark.parametrize("way", ["attribute", "list", "buffer", "written", "written buffer"])
def test_a_state_that_passes_of_one_number_of_examples_write(way: str) -> None:
    expect_state_of_one_number(lambda count: OfOneNumber(way, count), IDS)


def test_a_new_state_is_no_state() -> None:
    model = Carry("attribute").eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole, parts = (embgrad.gradients(model, IDS, LOGIT, batch_size=size) for size in (None, 1))
        occluded = embgrad.attribute(model, IDS, LOGIT, ZERO)
    np.testing.assert_allclose(parts.values, whole.values, rtol=1e-5, atol=1e-7)
    assert model.state is None
    again = embgrad.attribute(Carry("attribute").eval(), IDS[:1], LOGIT, ZERO)
    np.testing.assert_allclose(occluded.scores[0], again.scores[0], atol=1e-6)


class Encoder(nn.Module):
    """The mean of a layer's outputs; `meeting` normalises them with the batch's own averages."""

    def __init__(self, *, meeting: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.layer = nn.Embedding(9, 4), nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, track_running_stats=False) if meeting else nn.Identity()

    def forward(self, ids: Any) -> Any:
        return self.norm(self.layer(self.table(ids)).tanh().mean(1))


def test_a_similarity_of_the_rows_of_a_batch() -> None:
    def similarity(out: Any) -> Any:
        rows = nn.functional.normalize(out, dim=-1)
        return (rows * rows.roll(1, 0)).sum(1)

    expect_others_held(Encoder().eval(), IDS, similarity)


def test_batch_norm_by_the_averages_of_the_batch() -> None:
    model = Encoder(meeting=True).eval()
    g = embgrad.gradients(model, IDS, LOGIT, split=True)
    occluded = embgrad.attribute(model, IDS, LOGIT, ZERO)
    values = np.array(g.activations)
    values[1, 2] = 0
    expected = g.objective - embgrad.evaluate(model, IDS, LOGIT, override={"word": values})
    np.testing.assert_allclose(occluded.scores[1, 2], expected[1], rtol=1e-4)
    with pytest.raises(
        embgrad.errors.UnsupportedError, match="the log-probabilities of an example's tokens depend on the other 2"
    ):
        embgrad.attribute_tokens(_Tokens().eval(), IDS, method=embgrad.methods.IntegratedGradients(2))


class _Tokens(nn.Module):
    """A language model of which each example sees the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)

    def forward(self, ids: Any) -> Any:
        rows = self.table(ids)
        return self.head((rows.cumsum(1) + rows.mean((0, 1))).tanh())


class _Carrying(_Tokens):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.state = torch.randn(count, 1, 4)

    def forward(self, ids: Any) -> Any:
        state = self.state if len(self.state) == len(ids) else torch.zeros(len(ids), 1, 4)
        rows = self.table(ids).cumsum(1) + state
        self.state = rows[:, -1:].detach()
        return self.head(rows.tanh())


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("method", [embgrad.methods.IntegratedGradients(30, baseline=0), embgrad.methods.Occlusion(0)])
def test_output_tokens_of_a_model_that_carries_a_state(count: int, method: Any) -> None:
    model, ids = _Carrying(count).eval(), IDS[:count]
    found = embgrad.attribute_tokens(model, ids, method=method)
    labels = np.full(ids.shape, -100)
    labels[:, 2] = ids[:, 2]
    last = embgrad.LogProbability(labels)
    g = embgrad.gradients(model, ids, last)
    np.testing.assert_allclose(found.objective[:, 1], g.objective, rtol=1e-5)
    gone = []
    for position in range(2):
        values = np.array(g.activations)
        values[:, position] = model.table.weight[0].detach().numpy()
        gone.append(g.objective - embgrad.evaluate(model, ids, last, override={"word": values}))
    if isinstance(method, embgrad.methods.Occlusion):
        np.testing.assert_allclose(found.scores[:, 1, :2], np.stack(gone, 1), atol=2e-6)
    else:
        ends = np.broadcast_to(model.table.weight[0].detach().numpy(), g.activations.shape)
        before = embgrad.evaluate(model, ids, last, override={"word": np.array(ends)})
        np.testing.assert_allclose(found.scores[:, 1].sum(1), g.objective - before, atol=1e-3)
    assert len(model.state) == count


@pytest.mark.parametrize("method", ["input_x_gradient", embgrad.methods.IntegratedGradients(2, baseline=0)])
@pytest.mark.parametrize(("count", "size"), [(3, 1), (3, 2), (1, 2)])
def test_output_tokens_of_sub_batches_of_a_model_that_carries_a_state_are_refused(
    method: Any, count: int, size: int
) -> None:
    with pytest.raises(
        embgrad.errors.UnsupportedError, match="the model keeps 'state' from call to call, and L of example"
    ):
        embgrad.attribute_tokens(_Carrying(count).eval(), IDS, method=method, batch_size=size)


def test_a_batch_that_is_sorted_for_packing() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.lstm = nn.Embedding(9, 4), nn.LSTM(4, 3, batch_first=True)

        def forward(self, text: Any, lengths: Any) -> Any:
            packed = nn.utils.rnn.pack_padded_sequence(self.table(text), lengths, batch_first=True)
            return self.lstm(packed)[1][0][0]

    batch = {
        "input_ids": torch.tensor([[3, 4, 5], [6, 7, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]),
        "lengths": torch.tensor([3, 2]),
    }
    options = {"call": lambda model, inputs: model(inputs["input_ids"], inputs["lengths"])}
    for method in (embgrad.methods.IntegratedGradients(4), ZERO):
        sorted_, single = (
            embgrad.attribute(Net(), batch, LOGIT, method, batch_size=size, **options) for size in (None, 1)
        )
        np.testing.assert_allclose(sorted_.scores, single.scores, atol=1e-6)


def test_a_net_that_takes_the_examples_for_its_positions() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.rnn = nn.Embedding(9, 4), nn.LSTM(4, 4)  # not batch_first=True

        def forward(self, ids: Any) -> Any:
            return self.rnn(self.table(ids))[0].mean(1)

    model = Net()
    expect_of_own_number(model, IDS[:1], model(torch.tensor(IDS[:1]))[:, 1].detach().numpy(), cut=False)

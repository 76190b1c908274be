"""`compile=True`: what takes a trace of its own, and what is no part of a trace but of each call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import kept
from torch import nn

import embgrad
from tests.compiled import same
from tests.torch.kept_traces import IDS, LONGER, PROJECTION, Net, agree, falls_back

pytestmark = pytest.mark.usefixtures("one_by_one")


def test_recurrent_layers_take_a_trace_a_length(traces: list[Any]) -> None:
    model = Net()
    model.inner = nn.LSTM(6, 6, batch_first=True).double()
    model.body = lambda rows: model.inner(rows)[0]
    for batch in (IDS, LONGER, IDS[:2]):
        agree(model, batch)
    assert len(traces) == 2


def test_few_traces_serve_every_length_and_number_of_examples(traces: list[Any]) -> None:
    model = Net()
    random = np.random.default_rng(0)
    for shape in ((3, 5), (2, 2), (2, 7), (5, 33), (1, 5), (1, 7), (5, 1), (2, 1), (1, 1)):
        agree(model, random.integers(1, 12, shape))
    assert len(traces) == 4  # several of both, one of either, one of both
    ran = model.ran
    embgrad.gradients(model, IDS, PROJECTION, compile=True)
    assert model.ran == ran  # none of its Python


def test_a_length_that_python_reads_takes_another_trace(traces: list[Any]) -> None:
    class Branching(Net):
        def body(self, rows: Any) -> Any:
            return self.inner(rows) * (2 if rows.shape[1] > 5 else 1)

    model = Branching()
    for batch in (IDS, LONGER, IDS[:2], LONGER[:, :6]):
        agree(model, batch)
    assert len(traces) == 2


def test_too_many_lengths(monkeypatch: Any) -> None:
    class Reading(Net):
        def body(self, rows: Any) -> Any:
            return self.inner(rows) * torch.tensor(np.linspace(1, 2, rows.shape[1]))[:, None]

    monkeypatch.setattr(kept, "LENGTHS", 2)
    model = Reading()
    agree(model, IDS)
    agree(model, LONGER)
    falls_back(model, "its lengths take a trace each, and 2 are kept", IDS[:, :3])
    agree(model, IDS)


@pytest.mark.parametrize("option", ["override", "add", "edit"])
@pytest.mark.parametrize("at", ["word", "inner", "inner:input"])
def test_changes_are_no_part_of_the_trace(traces: list[Any], option: str, at: str) -> None:
    model = Net()
    for by in (2.0, -3.0):
        called: list[Any] = []

        def change(value: Any, by: float = by, called: list[Any] = called) -> Any:
            called.append(value)
            return value * by

        plain = embgrad.gradients(model, IDS, PROJECTION, at=at, **{option: {at: change}})
        assert called
        called.clear()
        same(plain, embgrad.gradients(model, IDS, PROJECTION, at=at, compile=True, **{option: {at: change}}))
        assert len(called) == 1  # also by the call that made the trace
    assert len(traces) == 1


def test_labels_are_no_part_of_the_trace(traces: list[Any]) -> None:
    model = Net()
    for labels in ([0, 1, 2], [2, 2, 0]):
        agree(model, IDS, embgrad.CrossEntropy(labels))
    for index in (0, 2):
        agree(model, IDS, embgrad.Logit(index))
    assert len(traces) == 1


def test_native_objectives(traces: list[Any]) -> None:
    class Several(Net):
        def forward(self, input_ids: Any) -> Any:
            hidden = self.body(self.rows(input_ids))
            return {"logits": self.outer(hidden.mean(1)), "hidden": (hidden, 3, None)}

    model = Several()
    for index in (0, 2):
        agree(model, IDS, lambda out, index=index: out["logits"][:, index])
        agree(model, IDS, embgrad.Scalar(lambda out, index=index: out["logits"][:, index].sum()))
    assert len(traces) == 2
    agree(model, IDS, lambda out: out["hidden"][0].sum((1, 2)) * out["hidden"][1])
    assert len(traces) == 3
    both = [True]

    def objective(out: Any) -> Any:
        return out["logits"][:, 0] + (out["hidden"][0].sum((1, 2)) if both else 0)

    agree(model, IDS, objective)
    both.clear()
    agree(model, IDS, objective)
    both.append(True)
    agree(model, IDS, objective)
    with pytest.raises(embgrad.NoGradientError):
        embgrad.gradients(model, IDS, lambda out: out["logits"].detach()[:, 0], compile=True)


def test_weights_may_change(traces: list[Any]) -> None:
    model = Net()
    before = agree(model, IDS)
    with torch.no_grad():
        model.inner.weight.mul_(1.5)
    agree(model, IDS)
    model.inner.weight = nn.Parameter(model.inner.weight.detach() * 2)
    agree(model, IDS)
    model.inner.weight.data = model.inner.weight.data * 2
    after = agree(model, IDS)
    assert np.abs(after.values - before.values).max() > 0.01 * np.abs(before.values).max()
    model.inner.weight.data = model.inner.weight.data.t()  # the same memory, and the same shape
    turned = agree(model, IDS)
    assert np.abs(turned.values - after.values).max() > 0.01 * np.abs(after.values).max()
    assert len(traces) == 1
    model.float()
    same(*(embgrad.gradients(model, IDS, PROJECTION, compile=one) for one in (False, True)), rel=1e-5)
    assert len(traces) == 2


def test_a_call_of_ones_own(traces: list[Any]) -> None:
    encoder, head = Net(), nn.Linear(6, 3).double()
    for factor in (1, 1, 2):
        agree(
            [encoder, head],
            IDS,
            call=lambda parts, inputs, factor=factor: parts[1](parts[0].table(inputs).mean(1)) * factor,
        )
    assert len(traces) == 2

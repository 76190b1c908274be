"""Evaluations in PyTorch: no graph is recorded, but for code that differentiates by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import embgrad

IDS = np.array([[1, 2, 8], [4, 5, 6]])

#: Whether the output of each pass was on a graph; the state of a model itself is restored after a call.
RECORDED: list[bool] = []


class Classifier(torch.nn.Module):
    """A classifier; with `forces` its output is a gradient."""

    def __init__(self, forces: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(9, 4), torch.nn.Linear(4, 2)
        self.forces = forces

    def forward(self, input_ids: Any) -> Any:
        rows = self.embedding(input_ids)
        logits = self.head(rows.mean(1).tanh())
        if self.forces:
            (force,) = torch.autograd.grad(logits.sum(), rows)
            logits = force.sum(1)
        RECORDED.append(logits.requires_grad)
        return logits


def function(outputs: Any) -> Any:
    return outputs[:, 0]


def test_no_graph_is_recorded() -> None:
    model = Classifier()
    RECORDED.clear()
    for objective in (embgrad.Logit(0), function):
        values = embgrad.evaluate(model, IDS, objective)
        np.testing.assert_allclose(values, embgrad.gradients(model, IDS, objective).objective, rtol=1e-6)
    assert RECORDED == [False, True] * 2
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_model_that_differentiates_is_evaluated_on_a_graph() -> None:
    model = Classifier(forces=True)
    expected = model(torch.tensor(IDS))[:, 0].detach().numpy()
    np.testing.assert_allclose(embgrad.evaluate(model, IDS, embgrad.Logit(0)), expected, rtol=1e-6)


def test_a_function_that_differentiates_is_evaluated_on_a_graph() -> None:
    model = Classifier()

    def slope(outputs: Any) -> Any:
        (gradient,) = torch.autograd.grad(outputs.sum(), model.head.weight, retain_graph=True)
        return gradient.sum() + outputs[:, 0]

    outputs = model(torch.tensor(IDS))
    np.testing.assert_allclose(embgrad.evaluate(model, IDS, slope), slope(outputs).detach().numpy(), rtol=1e-6)

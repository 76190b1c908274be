"""A net with a module that can run compiled, and comparisons of compiled with plain calls."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.compiled import same

__all__ = ["IDS", "LONGER", "PROJECTION", "Body", "Net", "agree", "falls_back"]

IDS = np.array([[5, 2, 9, 4, 1], [3, 8, 7, 6, 10], [6, 10, 11, 2, 2]])
LONGER = np.array([[5, 2, 9, 4, 1, 11, 7], [3, 8, 7, 0, 0, 0, 0]])
PROJECTION = embgrad.Projection([1.0, -2.0, 0.5])


def _bent(body: Any, rows: Any) -> Any:
    return body.norm(body.inner(rows).tanh()) * body.factor


class Body(nn.Module):
    """Bends rows by a function of itself and the rows."""

    def __init__(self, function: Callable[[Any, Any], Any] = _bent) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.factor: Any = 2.0
        self.function = function

    def forward(self, rows: Any) -> Any:
        return self.function(self, rows)


class Net(nn.Module):
    """Looks rows up, bends them, and reads off three numbers."""

    def __init__(self, function: Callable[[Any, Any], Any] = _bent) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(12, 6, padding_idx=0)
        self.body = Body(function)
        self.outer = nn.Linear(6, 3)
        self.double().eval()

    def forward(self, input_ids: Any) -> Any:
        return self.outer(self.body(self.table(input_ids)).mean(1))


def agree(model: Any, batch: Any = IDS, objective: Any = PROJECTION, rel: float = 1e-10, **options: Any) -> Any:
    """Assert that a compiled call returns what a plain one returns, the first time and later, and return its result."""
    plain = embgrad.gradients(model, batch, objective, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        for _ in range(2):
            compiled = embgrad.gradients(model, batch, objective, compile=True, **options)
            if isinstance(plain, dict):
                for name, result in plain.items():
                    same(result, compiled[name], rel)
            else:
                same(plain, compiled, rel)
    return compiled


def falls_back(model: Any, why: str, batch: Any = IDS, objective: Any = PROJECTION, **options: Any) -> None:
    """Assert that compile=True warns that nothing ran compiled, and gives bit for bit what a plain call gives."""
    plain = embgrad.gradients(model, batch, objective, **options)
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match=f"compile=True: .*{why}"):
            compiled = embgrad.gradients(model, batch, objective, compile=True, **options)
        np.testing.assert_array_equal(compiled.values, plain.values)
        assert compiled.provenance["compiled"] is False

"""What the tests of kept traces share: a small net whose runs are counted, and a call with a trace beside one without."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.compiled import same

IDS = np.array([[5, 2, 9, 4, 1], [3, 8, 7, 6, 10], [6, 10, 11, 2, 2]])
LONGER = np.array([[5, 2, 9, 4, 1, 11, 7], [3, 8, 7, 0, 0, 0, 0]])
PROJECTION = embgrad.Projection([1.0, -2.0, 0.5])


#: What PyTorch 2.6 has no trace of, by the name of a test's model, and what is said of it. What lies between was not run.
WITHOUT_A_TRACE = {
    "Detaching": "is a torch.autograd.Function, whose own backward pass",
    "Switching": "the gradients at 'word' of a trace of it differ from what it gives itself",
    "Compiled": "cannot be followed without values .*FX to symbolically trace a dynamo-optimized function",
    "Mapped": "cannot be followed without values",
}
IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)


class Net(nn.Module):
    """Looks rows up, bends them, and reads off three numbers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(12, 6, padding_idx=0)
        self.inner = nn.Linear(6, 6)
        self.outer = nn.Linear(6, 3)
        self.double().eval()
        self.ran = 0

    def rows(self, ids: Any) -> Any:
        return self.table(ids)

    def body(self, rows: Any) -> Any:
        return self.inner(rows).tanh()

    def forward(self, input_ids: Any) -> Any:
        self.ran += 1
        return self.outer(self.body(self.rows(input_ids)).mean(1))


def agree(model: Any, batch: Any, objective: Any = PROJECTION, rel: float = 1e-10, **options: Any) -> Any:
    """A call with a trace gives what one without gives, the first time and later."""
    plain = embgrad.gradients(model, batch, objective, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        for _ in range(2):
            compiled = embgrad.gradients(model, batch, objective, compile=True, **options)
            if isinstance(plain, dict):
                for name, one in plain.items():
                    same(one, compiled[name], rel)
            else:
                same(plain, compiled, rel)
    return compiled


def falls_back(model: Any, why: str, batch: Any = IDS, objective: Any = PROJECTION, **options: Any) -> None:
    """A call with a trace warns that there is none, and gives bit for bit what one without gives."""
    plain = embgrad.gradients(model, batch, objective, **options)
    for _ in range(2):
        with pytest.warns(embgrad.EmbgradWarning, match=f"compile=True: .*{why}"):
            compiled = embgrad.gradients(model, batch, objective, compile=True, **options)
        np.testing.assert_array_equal(compiled.values, plain.values)
        assert compiled.provenance["compiled"] is False

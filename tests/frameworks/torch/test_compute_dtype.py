"""In which dtype a model computes, as its result says: the coarsest that its points and outputs, or autocast, show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import embgrad

IDS = np.random.default_rng(0).integers(1, 30, (3, 6))


class Net(torch.nn.Module):
    """Embedding → tanh of a linear layer → mean → linear, in which automatic casts may be on."""

    def __init__(self, inside: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding, self.layer, self.head = (
            torch.nn.Embedding(30, 16),
            torch.nn.Linear(16, 16),
            torch.nn.Linear(16, 3),
        )
        self._inside = inside

    def forward(self, input_ids: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._inside or torch.is_autocast_enabled("cpu")):
            return self.head(torch.tanh(self.layer(self.embedding(input_ids))).mean(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_casts(dtype: Any) -> None:
    found = embgrad.gradients(Net().to(dtype).eval(), IDS, embgrad.Logit(1))
    assert found.provenance["compute_dtype"] == str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("inside", [False, True])
def test_automatic_casts(inside: bool) -> None:
    for seed in range(3):
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            found = embgrad.gradients(Net(inside, seed).eval(), IDS, embgrad.Logit(1), check=True)
        assert found.provenance["compute_dtype"] == "bfloat16"
        assert found.values.dtype == np.float32


def test_a_coarser_output() -> None:
    class Last(Net):
        def forward(self, input_ids: Any) -> Any:
            return super().forward(input_ids).to(torch.float16)

    assert embgrad.gradients(Last().eval(), IDS, embgrad.Logit(1)).provenance["compute_dtype"] == "float16"

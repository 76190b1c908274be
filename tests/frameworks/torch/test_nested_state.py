"""Containers and arrays that a model holds in attributes, at any depth, are restored after a call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import embgrad
from tests.keeping import IDS, KNOT, OBJECTS, VOCAB, WAYS, Way, assert_left_and_seen, assert_left_by_traces


def _written(kept: dict[str, Any], value: float) -> None:
    kept["sums"] += value


#: With what PyTorch has of its own.
OURS: dict[str, Way] = {
    **{name: way for name, way in WAYS.items() if name not in OBJECTS},
    "a knot": KNOT,
    "a tensor in a dict": (lambda: {"sums": torch.zeros(()).double()}, _written, lambda kept: kept["sums"].item()),
}


class Net(nn.Module):
    """Keeps something at each pass, and gives other numbers for what it has kept."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        make, self._write, self._count = way
        self.table, self.inner = nn.Embedding(VOCAB, 4), nn.Linear(4, 3)
        self.kept = make()

    def forward(self, x: Any) -> Any:
        self._write(self.kept, 1.0)
        return torch.tanh(self.inner(self.table(x)) + 0.1 * float(self._count(self.kept))).sum(1)


def net(way: str) -> Net:
    torch.manual_seed(0)
    return Net(OURS[way]).double().eval()


@pytest.mark.parametrize("way", OURS)
def test_calls_leave_what_is_kept_and_see_what_the_user_keeps(way: str) -> None:
    model = net(way)
    kept = model.kept
    assert_left_and_seen(model, kept, OURS[way])
    assert model.kept is kept


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", OURS)
def test_traces_leave_what_is_kept(way: str) -> None:
    model = net(way)
    assert_left_by_traces(model, model.kept, OURS[way])


def test_what_an_error_leaves_is_put_back() -> None:
    model = net("a dict of lists")
    model.inner = nn.Linear(5, 3).double()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        embgrad.gradients(model, IDS, embgrad.Sum())
    assert model.kept == {"keys": []}

"""What a model keeps in containers inside of others, and in objects of the user's own, is what it was after a call."""

from __future__ import annotations

import collections
import sys
import threading
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import attributes, nested, structure
from torch import nn

import embgrad
from tests.torch.checks import IDS, VOCAB


class Cache:
    """An object of the user's own that keeps things."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: list[Any] = []
        self.inner: dict[str, Any] = {"maps": []}


class Worker(threading.Thread):
    """An object of a class that is made of Python's own."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[int] = []


def _counted(kept: Cache, value: Any) -> None:
    kept.count += value


def _replaced(kept: Cache, value: Any) -> None:
    kept.__dict__ = {**vars(kept), "count": kept.count + value}


def _grown(kept: Cache, value: Any) -> None:
    vars(kept)[f"later {len(vars(kept))}"] = value


def _written(kept: dict[str, Any], value: Any) -> None:
    kept["sums"] += value


#: What is kept, how a pass writes to it, and what of it counts in the pass.
WAYS: dict[str, tuple[Callable[[], Any], Callable[[Any, Any], Any], Callable[[Any], Any]]] = {
    "a dict of lists": (
        lambda: {"keys": []},
        lambda kept, value: kept["keys"].append(value),
        lambda kept: sum(kept["keys"]),
    ),
    "a list of lists": (lambda: [[], [1.0]], lambda kept, value: kept[1].append(value), lambda kept: sum(kept[1])),
    "a tuple of lists": (lambda: ([], []), lambda kept, value: kept[0].append(value), lambda kept: sum(kept[0])),
    "lists by need": (
        lambda: {"all": collections.defaultdict(list, first=[])},
        lambda kept, value: kept["all"][str(len(kept["all"]))].append(value),
        lambda kept: sum(map(sum, kept["all"].values())),
    ),
    "a queue": (
        lambda: [{"last": collections.deque([1.0, 2.0], maxlen=2)}],
        lambda kept, value: kept[0]["last"].append(value),
        lambda kept: sum(kept[0]["last"]),
    ),
    "an object": (Cache, lambda kept, value: kept.keys.append(value), lambda kept: sum(kept.keys)),
    "an object's number": (Cache, _counted, lambda kept: kept.count),
    "an object's dict": (Cache, _replaced, lambda kept: kept.count),
    "an object's attributes": (Cache, _grown, lambda kept: len(vars(kept))),
    "deep in an object": (
        lambda: [Cache()],
        lambda kept, value: kept[0].inner["maps"].append(value),
        lambda kept: sum(kept[0].inner["maps"]),
    ),
    "a namespace": (
        lambda: types.SimpleNamespace(keys=()),
        lambda kept, value: setattr(kept, "keys", (*kept.keys, value)),
        lambda kept: sum(kept.keys),
    ),
    "a tensor in a dict": (lambda: {"sums": torch.zeros(()).double()}, _written, lambda kept: kept["sums"].item()),
    "a knot": (lambda: _knot(), lambda kept, value: kept[1].append(value), lambda kept: sum(kept[1])),
}


def _knot() -> list[Any]:
    """A list that holds itself."""
    knot: list[Any] = [None, []]
    knot[0] = knot
    return knot


class Net(nn.Module):
    """Keeps something at each pass, and gives other numbers for what it has kept."""

    def __init__(self, way: str) -> None:
        super().__init__()
        make, self._write, self._count = WAYS[way]
        self.table, self.inner = nn.Embedding(VOCAB, 4), nn.Linear(4, 3)
        self.kept = make()

    def write(self, value: float) -> None:
        """Keep a number."""
        self._write(self.kept, value)

    def counted(self) -> float:
        """The sum of what is kept."""
        return float(self._count(self.kept))

    def forward(self, x: Any) -> Any:
        self.write(1.0)
        return torch.tanh(self.inner(self.table(x)) + self.counted()).sum(1)


@pytest.fixture(params=["told by versions", "compared"])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether dicts say that they were written to, as up to Python 3.11, or are looked at."""
    if request.param == "compared" or sys.version_info >= (3, 12):
        for module in (structure, attributes):
            monkeypatch.setattr(module, "versions_of", lambda mappings, plain=False: [object() for _ in mappings])
        monkeypatch.setattr(attributes, "HAVE_VERSIONS", False)


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("way", WAYS)
def test_calls_leave_what_is_kept_and_see_what_the_user_keeps(way: str) -> None:
    torch.manual_seed(0)
    model = Net(way).double().eval()
    kept = model.kept
    for step in range(3):
        before = model.counted()
        calls = [embgrad.gradients(model, IDS, embgrad.Sum()).values for _ in range(3)]
        for one in calls[1:]:
            np.testing.assert_array_equal(one, calls[0])
        assert model.kept is kept
        assert model.counted() == before
        model.write(0.25 * (step + 1))
        assert model.counted() != before
        assert np.abs(embgrad.gradients(model, IDS, embgrad.Sum()).values - calls[0]).max() > 0


def test_what_an_error_leaves_is_put_back() -> None:
    model = Net("a dict of lists").double().eval()
    model.inner = nn.Linear(5, 3).double()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        embgrad.gradients(model, IDS, embgrad.Sum())
    assert model.kept == {"keys": []}


def test_data_and_what_sees_to_itself_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested, "MOST_ENTRIES", 8)
    data, small = [[number] for number in range(9)], [[1]]
    worker, model = Worker(), nn.Linear(2, 2)
    found = nested.nested([data, small])
    assert [id(one) for one in found.containers] == [id(small[0])]
    assert not found.objects
    for one in (worker, model, threading.Lock(), torch.Size([1]), Cache, len, np.zeros(2), nn.Parameter(torch.ones(1))):
        assert not nested.is_entered(type(one))
    assert nested.is_entered(Cache)
    monkeypatch.setattr(nested, "MOST_NUMBERS", 8)
    tensors = [torch.zeros(6), torch.zeros(6), torch.zeros(2)]
    assert [id(one) for one in nested.nested([tensors]).tensors] == [id(tensors[0]), id(tensors[2])]

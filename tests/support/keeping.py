"""Ways in which models keep things from call to call: what is kept, how a pass writes to it, and what of it counts."""

from __future__ import annotations

import collections
import dataclasses
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad

__all__ = [
    *("IDS", "KNOT", "OBJECTS", "VOCAB", "WAYS", "Builder", "Cache", "SlottedBuilder", "Way", "assert_left_and_seen"),
    *("assert_left_by_traces", "assert_parts_stay", "assert_put_back_after_an_error"),
]

VOCAB = 13
IDS = np.array([[1, 2, 3], [2, 5, 1]])


class Cache:
    """An object of the user's own that keeps things."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: list[Any] = []
        self.inner: dict[str, Any] = {"maps": []}


@dataclasses.dataclass
class Slotted:
    """One whose attributes have places of their own."""

    __slots__ = ("count", "keys", "last")

    count: float
    keys: list[Any]


@dataclasses.dataclass(frozen=True)
class Frozen:
    """One that is written to by a way around its class."""

    count: float = 0.0


class Memory(dict[str, list[float]]):
    """A container of the user's own, which writes in its own way."""

    def __setitem__(self, key: str, value: list[float]) -> None:
        super().__setitem__(key, list(value))


class Recent(collections.namedtuple("Recent", "first last")):
    """A tuple of the user's own."""


def _counted(kept: Any, value: float) -> None:
    kept.count += value


def _replaced(kept: Cache, value: float) -> None:
    kept.__dict__ = {**vars(kept), "count": kept.count + value}


def _grown(kept: Cache, value: float) -> None:
    vars(kept)[f"later {len(vars(kept))}"] = value


def _in_a_slot(kept: Slotted, value: float) -> None:
    kept.last = getattr(kept, "last", 0.0) + value  # type: ignore[attr-defined]


def _added(kept: Any, value: float) -> None:
    kept += value


def _remembered(kept: Memory, value: float) -> None:
    kept[f"later {len(kept)}"] = [value]


def _moved(kept: collections.OrderedDict[str, float], value: float) -> None:
    kept["second"] += value
    kept.move_to_end("first")


#: What is kept, how a pass writes a number to it, and what of it counts in the pass.
Way = tuple[Callable[[], Any], Callable[[Any, float], Any], Callable[[Any], Any]]

WAYS: dict[str, Way] = {
    "a dict of lists": (lambda: {"keys": []}, lambda kept, value: kept["keys"].append(value),
        lambda kept: sum(kept["keys"])),
    "a list of lists": (lambda: [[], [1.0]], lambda kept, value: kept[1].append(value), lambda kept: sum(kept[1])),
    "a tuple of lists": (lambda: ([], []), lambda kept, value: kept[0].append(value), lambda kept: sum(kept[0])),
    "a named tuple": (lambda: Recent([], []), lambda kept, value: kept.last.append(value), lambda kept: sum(kept.last)),
    "a set": (lambda: {0.5}, lambda kept, value: kept.add(len(kept) + value), lambda kept: sum(kept)),
    "an ordered dict": (
        lambda: collections.OrderedDict(first=1.0, second=2.0),
        _moved,
        lambda kept: sum(place**2 * value for place, value in enumerate(kept.values(), 1)),
    ),
    "lists by need": (
        lambda: {"all": collections.defaultdict(list, first=[])},
        lambda kept, value: kept["all"][str(len(kept["all"]))].append(value),
        lambda kept: sum(map(sum, kept["all"].values())),
    ),
    "a queue": (
        lambda: [{"last": collections.deque([1.0, 2.0], maxlen=2)}],
        lambda kept, value: kept[0]["last"].append(value / (1 + kept[0]["last"][-1])),
        lambda kept: sum(kept[0]["last"]),
    ),
    "an object": (Cache, lambda kept, value: kept.keys.append(value), lambda kept: sum(kept.keys)),
    "an object's number": (Cache, _counted, lambda kept: kept.count),
    "an object's dict": (Cache, _replaced, lambda kept: kept.count),
    "an object's attributes": (Cache, _grown, lambda kept: len(vars(kept))),
    "an object's slot": (lambda: Slotted(0.0, []), _counted, lambda kept: kept.count),
    "an object's empty slot": (lambda: [Slotted(0.0, [])], lambda kept, value: _in_a_slot(kept[0], value),
        lambda kept: getattr(kept[0], "last", 0.0)),
    "what a slot holds": (lambda: Slotted(0.0, []), lambda kept, value: kept.keys.append(value),
        lambda kept: sum(kept.keys)),
    "a frozen object": (Frozen, lambda kept, value: object.__setattr__(kept, "count", kept.count + value),
        lambda kept: kept.count),
    "a dict of the user's class": (Memory, _remembered, lambda kept: sum(map(sum, kept.values()))),
    "deep in an object": (lambda: [Cache()], lambda kept, value: kept[0].inner["maps"].append(value),
        lambda kept: sum(kept[0].inner["maps"])),
    "a namespace": (lambda: types.SimpleNamespace(keys=()),
        lambda kept, value: setattr(kept, "keys", (*kept.keys, value)), lambda kept: sum(kept.keys)),
    "an array": (lambda: np.zeros(2), _added, lambda kept: kept.sum()),
    "an array in an object": (lambda: types.SimpleNamespace(sums=np.zeros((2, 2)).T),
        lambda kept, value: _added(kept.sums, value), lambda kept: kept.sums.sum()),
}  # fmt: skip


#: The ways that write into objects of the user's classes, which a backend may restore as references alone.
OBJECTS = [way for way in WAYS if "object" in way or "slot" in way or way == "a namespace"]


def _knot() -> list[Any]:
    knot: list[Any] = [None, []]
    knot[0] = knot
    return knot


#: One that Gluon, Keras and TensorFlow fail at by themselves.
KNOT: Way = (_knot, lambda kept, value: kept[1].append(value), lambda kept: sum(kept[1]))


def assert_left_and_seen(model: Any, kept: Any, way: Way) -> None:
    """Calls leave what a model keeps as it was, give the same each time, and see what the user writes to it between them.

    Args:
        model: writes 1 to what it keeps, in each pass, and adds what counts to what it computes.
        kept: what it keeps, as it holds it.
        way: in which.
    """
    _, write, count = way
    for step in range(3):
        before = count(kept)
        calls = [embgrad.gradients(model, IDS, embgrad.Sum()).values for _ in range(3)]
        for one in calls[1:]:
            np.testing.assert_array_equal(one, calls[0])
        assert count(kept) == before
        write(kept, 0.25 * (step + 1))
        assert count(kept) != before
        assert np.abs(embgrad.gradients(model, IDS, embgrad.Sum()).values - calls[0]).max() > 0


def assert_left_by_traces(model: Any, kept: Any, way: Way) -> None:
    """Calls with `compile=True` leave what a model keeps as it was, whether or not there is a trace.

    Args:
        model: as in `assert_left_and_seen`; so are `kept` and `way`.
    """
    before = way[2](kept)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embgrad.EmbgradWarning)
        calls = [embgrad.gradients(model, IDS, embgrad.Sum(), compile=True).values for _ in range(2)]
    np.testing.assert_array_equal(*calls)
    assert way[2](kept) == before


class Builder:
    """An object of the user's own that makes a part when it is first needed.

    Args:
        make: makes it.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.tables: list[Any] = []
        self.made = 0

    def table(self) -> Any:
        self.made += 1
        if not self.tables:
            self.tables.append(self.make())
        return self.tables[0]


class SlottedBuilder:
    """The same with places of their own for its attributes."""

    __slots__ = ("made", "make", "tables")

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.made = 0

    def table(self) -> Any:
        self.made += 1
        if not hasattr(self, "tables"):
            self.tables = (self.make(),)
        return self.tables[0]


def assert_parts_stay(model: Any) -> None:
    """What an object in a model builds in the first call stays.

    Args:
        model: has a `builder` of a table of ones, and gives the sum of the squares of its rows.
    """
    found = embgrad.gradients(model, IDS, embgrad.Sum())
    np.testing.assert_array_equal(found.values, np.full((*IDS.shape, 4), 2.0))
    (table,) = model.builder.tables
    embgrad.gradients(model, IDS, embgrad.Sum())
    assert model.builder.tables[0] is table


def assert_put_back_after_an_error(model: Any) -> None:
    """What a pass has kept before it raises is put back.

    Args:
        model: keeps "a dict of lists".
    """
    model.kept["keys"].append("no number")
    with pytest.raises(TypeError, match="unsupported operand"):
        embgrad.gradients(model, IDS, embgrad.Sum())
    assert dict(model.kept) == {"keys": ["no number"]}

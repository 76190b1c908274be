"""The search for what models keep, and putting it back."""

from __future__ import annotations

import collections
import operator
import random
import threading
import types
from typing import Any

import numpy as np
import pytest

from embgrad import nested
from embgrad.nested import Arrays, held_in, holds_any, is_entered, is_same, put_back
from tests.keeping import KNOT, WAYS, Cache, Way

SIZES = {np.ndarray: operator.attrgetter("size")}


class Worker(threading.Thread):
    """An object of a class that is made of Python's own."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[int] = []


class Bare:
    """An object without attributes."""

    __slots__ = ()


@pytest.mark.parametrize("way", WAYS)
def test_the_ways_that_are_tested_change_something(way: str) -> None:
    make, write, count = WAYS[way]
    kept = make()
    before = count(kept)
    write(kept, 1.0)
    assert count(kept) != before


@pytest.mark.parametrize("way", [*WAYS.values(), KNOT], ids=[*WAYS, "a knot"])
def test_all_that_is_found_is_put_back(way: Way) -> None:
    make, write, count = way
    kept = make()
    before, found = count(kept), nested.nested([kept], SIZES)
    containers = [(one, held_in(one)) for one in found.containers]
    arrays = Arrays(found.arrays)
    for _ in range(2):
        write(kept, 1.0)
        assert count(kept) != before
        for one in found.objects:
            one.put_back()
        for container, held in containers:
            put_back(container, held)
        arrays.put_back()
        assert count(kept) == before
        assert all(one.holds() for one in found.objects)
        assert all(is_same(*one) for one in containers)


def test_what_sees_to_itself_is_let_be() -> None:
    for one in (Worker(), threading.Lock(), Cache, len, np.zeros(2), Bare(), collections.Counter(), ValueError(), 1):
        assert not is_entered(type(one))
    for other in (Cache(), [], {}, (), types.SimpleNamespace(), type("Own", (list,), {})()):
        assert is_entered(type(other))


def test_data_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested, "MOST_ENTRIES", 8)
    data, small = [[number] for number in range(9)], [[1]]
    found = nested.nested([data, small], SIZES)
    assert [id(one) for one in found.containers] == [id(data), id(small), id(small[0])]
    assert not found.objects
    monkeypatch.setattr(nested, "MOST_NUMBERS", 8)
    arrays = [np.zeros(6), np.zeros(6), np.zeros(2)]
    assert [id(one) for one in nested.nested([arrays], SIZES).arrays] == [id(arrays[0]), id(arrays[2])]


def test_arrays_that_cannot_be_put_back_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nested, "LARGEST_ARRAY", 8)
    fixed = np.zeros(2)
    fixed.flags.writeable = False
    others = [fixed, np.zeros(9), np.array([None]), np.zeros(2).view(np.recarray), np.ma.zeros(2)]
    assert nested.nested([others], SIZES).arrays == []
    Arrays(others).put_back()


def test_arrays_are_put_back_to_the_bit() -> None:
    array = np.array([0.0, np.nan, 1.0])
    kept = Arrays([array, "no array"])
    array[:] = [-0.0, 2.0, 1.0]
    kept.put_back()
    assert array.tobytes() == np.array([0.0, np.nan, 1.0]).tobytes()


def test_generators_are_found() -> None:
    generators = [random.Random(0), np.random.default_rng(0), np.random.RandomState(0)]
    found = nested.nested([generators[0], {"held": tuple(generators)}], SIZES)
    assert list(map(id, found.generators)) == list(map(id, generators))
    assert not found.objects


def test_what_is_held_through_a_wrapper_is_found_once() -> None:
    inner = [[1]]
    wrapper = types.MappingProxyType({"inner": inner})

    def opened(value: Any) -> Any:
        return value["inner"] if value is wrapper else value

    found = nested.nested([wrapper, wrapper, (wrapper,)], SIZES, opened=opened)
    assert list(map(id, found.containers)) == [id(wrapper), id(inner[0])]


def test_whether_something_is_held() -> None:
    knot: list[Any] = []
    knot += [knot, {"a": ({1}, collections.deque([2.5]), frozenset({"b"}))}]
    for one in (1, 2.5, "b"):
        assert holds_any(knot, lambda value, one=one: value == one if type(value) is type(one) else False)
    assert not holds_any(knot, lambda value: value is None)
    assert not holds_any({"key": 1}, lambda value: value == "key")


def test_what_is_the_same_is_not_written_to() -> None:
    """Other threads may be reading it."""

    class Told(dict[str, int]):
        def __setitem__(self, key: str, value: int) -> None:
            raise AssertionError("it is written to by the plain class's methods")

    told = Told(a=1, b=2)
    before = held_in(told)
    dict.__setitem__(told, "a", 3)
    put_back(told, before)
    assert list(told.items()) == [("a", 1), ("b", 2)]
    iterating = iter(told.items())
    next(iterating)
    put_back(told, before)
    assert next(iterating) == ("b", 2)
    dict.__delitem__(told, "a")
    put_back(told, before)
    assert list(told.items()) == [("a", 1), ("b", 2)]


def test_objects_that_raise_whatever_is_asked_of_them_are_entered_all_the_same() -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(f"{name} is not there yet")

    proxy = object.__new__(Proxy)
    inner = nested.dict_of(proxy)
    inner["inner"] = [1]
    found = nested.nested([[proxy]], SIZES)
    assert inner["inner"] in found.containers
    inner["later"] = 1
    assert all(one.holds() for one in found.objects)

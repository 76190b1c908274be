"""The attributes of a model's modules are kept and restored, with the containers and arrays in them."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest

from embgrad.toolkit import object_state
from embgrad.toolkit.object_state import ObjectState
from embgrad.toolkit.recorded_changes import changes_recorded
from tests.support.keeping import KNOT, OBJECTS, WAYS, Way


@pytest.mark.parametrize("way", [WAYS[one] for one in WAYS if one not in OBJECTS] + [KNOT])
def test_containers_and_arrays_are_restored(way: Way) -> None:
    make, write, count = way
    kept = make()
    own, before = {"kept": kept}, count(kept)
    state = ObjectState([own])
    for _ in range(2):
        write(kept, 1.0)
        assert count(kept) != before
        state.restore()
        assert own["kept"] is kept
        assert count(kept) == before


class Named(dict[str, int]):
    """A container of the user's, whose own methods are not called."""

    __setitem__ = update = clear = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kept", "write"),
    [
        ({"a", "b", "c"}, lambda kept: (set.discard(kept, "a"), set.add(kept, "d"))),
        (deque("ab"), lambda kept: (kept.appendleft("c"), kept.pop())),
        (list("ab"), lambda kept: (kept.reverse(), kept.append("c"))),
        ({"a": 1, "b": 2}, lambda kept: kept.update(a=kept.pop("a"))),
        (Named(a=1, b=2), lambda kept: (kept.pop("a"), dict.__setitem__(kept, "c", 3))),
    ],
)
def test_what_a_container_held_is_restored_in_order(kept: Any, write: Any) -> None:
    before = [*kept.items()] if isinstance(kept, dict) else set(kept) if isinstance(kept, set) else [*kept]
    state = ObjectState([{"kept": kept}])
    write(kept)
    state.restore()
    now = [*kept.items()] if isinstance(kept, dict) else set(kept) if isinstance(kept, set) else [*kept]
    assert now == before


def test_the_order_of_attributes_is_restored() -> None:
    own = {"a": 1, "b": 2, "c": 3}
    state = ObjectState([own])
    own["d"] = own.pop("a")
    state.restore()
    assert list(own.items()) == [("a", 1), ("b", 2), ("c", 3)]


def test_parts_that_a_model_builds_stay() -> None:
    class Part:
        pass

    own: dict[str, Any] = {"parts": [], "table": None, "names": ["a"], "by name": {}}
    state = ObjectState([own], is_part=lambda value: isinstance(value, Part))
    part = Part()
    own["parts"].append(part)
    own["table"] = part
    own["names"].append("b")
    own["by name"]["a"] = [part]
    own["later"] = (part,)
    own["count"] = 1
    state.restore()
    assert own == {"parts": [part], "table": part, "names": ["a"], "by name": {"a": [part]}, "later": (part,)}


def test_large_data_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_state, "MOST_ENTRIES", 8)
    monkeypatch.setattr(object_state, "MOST_NUMBERS", 8)
    monkeypatch.setattr(object_state, "LARGEST_ARRAY", 7)
    data, small = [[number] for number in range(9)], [[1]]
    arrays = [np.zeros(6), np.zeros(6), np.zeros(2), np.zeros(8)]
    state = ObjectState([{"data": data, "small": small, **{str(n): item for n, item in enumerate(arrays)}}])
    for item in arrays:
        item += 1
    data.append([9])
    small[0].append(2)
    state.restore()
    assert len(data) == 10
    assert small == [[1]]
    assert [item[0] for item in arrays] == [0, 1, 0, 1]


def test_attributes_are_kept_up_to_a_number_of_entries() -> None:
    most = 1 << 14
    kept: dict[str, Any] = {
        **{f"list {more}": [0] * (most + more) for more in (0, 1)},
        **{f"dict {more}": dict.fromkeys(range(most + more), 0) for more in (0, 1)},
    }
    state = ObjectState([kept])
    for container in kept.values():
        container[0] = 1
    state.restore()
    assert [container[0] for container in kept.values()] == [0, 1, 0, 1]


@pytest.mark.parametrize("kind", [list, dict])
def test_nested_containers_are_kept_up_to_a_number_of_entries(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    monkeypatch.setattr(object_state, "MOST_ENTRIES", 10)

    def made(count: int) -> Any:
        return dict.fromkeys(range(count), 0) if kind is dict else [0] * count

    def write(container: Any) -> None:
        container[0] = 1

    own = {"plain": made(10), "outer": [made(4), made(4), made(4)], "other": made(10)}
    state = ObjectState([own])
    for container in (own["plain"], own["other"], *own["outer"]):
        write(container)
    state.restore()
    assert [own["plain"][0], own["other"][0]] == [0, 0], "attributes themselves are of any number"
    assert [container[0] for container in own["outer"]] == [0, 0, 1], "4 + 4 + 4 are more than 10"


def test_arrays_are_kept_up_to_a_size_each_and_together() -> None:
    sizes = [1 << 16, (1 << 16) + 1]
    arrays = [np.zeros(size, np.int8) for size in sizes]
    many = [np.zeros(1 << 16, np.int8) for _ in range(17)]
    for kept, expected in ((arrays, [0, 1]), (many, [0] * 16 + [1])):
        state = ObjectState([{str(number): array for number, array in enumerate(kept)}])
        for array in kept:
            array[0] = 1
        state.restore()
        assert [int(array[0]) for array in kept] == expected


def test_one_changed_attribute_among_many_is_restored() -> None:
    modules: list[dict[str, Any]] = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    state = ObjectState(modules)
    modules[1]["a"] = 5
    state.restore()
    assert modules == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    modules[0] = {"c": modules[0].pop("a")}
    state = ObjectState(modules)
    modules[0]["d"] = modules[0].pop("c")
    state.restore()
    assert modules[0] == {"c": 1}


def test_attributes_that_hold_other_arrays_than_before_are_recorded() -> None:
    model = {"cache": np.zeros(2), "table": np.zeros(2), "size": 1}
    state = ObjectState([model])
    model |= {"cache": np.ones(2), "size": 2}
    with changes_recorded() as changes:
        state.record_changes()
    assert [*changes.names] == ["cache"]


def test_unchanged_containers_are_not_written_to() -> None:
    """Another thread may iterate over them."""

    class Guarded(dict[str, int]):
        def __setitem__(self, key: str, value: int) -> None:
            raise AssertionError("the plain class's method writes")

    guarded = Guarded(a=1, b=2)
    state = ObjectState([{"guarded": guarded}])
    dict.__setitem__(guarded, "a", 3)
    state.restore()
    assert list(guarded.items()) == [("a", 1), ("b", 2)]
    iterating = iter(guarded.items())
    next(iterating)
    state.restore()
    assert next(iterating) == ("b", 2)
    dict.__delitem__(guarded, "a")
    state.restore()
    assert list(guarded.items()) == [("a", 1), ("b", 2)]

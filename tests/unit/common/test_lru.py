"""Bounded tables: which entries stay, what is made once, and what runs while an entry is let go."""

from __future__ import annotations

import threading

import pytest

from embgrad.common.lru import LRUCache


def test_an_entry_is_made_once_even_if_it_is_none() -> None:
    table: LRUCache[int | None] = LRUCache(2)
    made: list[str] = []
    for key in ("a", "a", "b", "a", "c", "a", "b"):
        assert table.get_or_make(key, lambda key=key: made.append(key)) is None
    assert made == ["a", "b", "c", "b"]


def test_a_failed_entry_is_not_stored() -> None:
    table: LRUCache[float] = LRUCache(2)
    with pytest.raises(ZeroDivisionError):
        table.get_or_make("a", lambda: 1 / 0)
    assert len(table) == 0
    assert table.get_or_make("a", lambda: 2) == 2


@pytest.mark.parametrize("go", ["pushed out", "replaced", "cleared"])
def test_a_finalizer_of_an_entry_may_use_the_cache(go: str) -> None:
    table: LRUCache[object] = LRUCache(1)
    seen: list[object] = []

    class Noticed:
        def __del__(self) -> None:
            seen.append(table.get("b", "none"))

    def run() -> None:
        table.put("a", Noticed())
        if go == "cleared":
            table.clear()
        else:
            table.put("a" if go == "replaced" else "b", 2)

    thread = threading.Thread(target=run, daemon=True)  # should it wait for itself the test is to end all the same
    thread.start()
    thread.join(10)
    assert seen == [2 if go == "pushed out" else "none"]


def test_the_entry_that_was_used_last_is_dropped_last() -> None:
    table: LRUCache[int] = LRUCache(2)
    for key in ("a", "b"):
        table.put(key, ord(key))
    assert table.get("a", None) == 97
    table.put("c", 99)
    assert [table.get(key, "gone") for key in ("a", "b", "c")] == [97, "gone", 99]
    table.put("a", 1)
    assert len(table) == 2
    table.put("d", 100)
    assert [table.get(key, "gone") for key in ("a", "c", "d")] == [1, "gone", 100]
    table.clear()
    assert len(table) == 0
    assert table.get("a", "gone") == "gone"

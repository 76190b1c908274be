"""`compile=True`: nothing that a trace is made with stays where a model keeps tensors, or sizes, of its passes."""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

import embgrad
from tests.torch.kept_traces import IDS, PROJECTION, Net, agree, falls_back

pytestmark = pytest.mark.usefixtures("one_by_one")

LOSSES: list[Any] = []
CACHE: dict[Any, Any] = {}
LAST: Any = None


@functools.lru_cache(maxsize=8)
def ramp(length: int) -> Any:
    return torch.arange(length, dtype=torch.float64)[:, None] / 10


@functools.cache
def slope(length: int) -> Any:
    return torch.arange(length, dtype=torch.float64)[:, None] / 7


class Store:
    """What a model keeps what it has seen in."""

    every: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.last: Any = None
        self.pairs: dict[str, Any] = {"of": (1, 2)}
        self.seen: deque[Any] = deque(maxlen=3)


class Keeping(Net):
    of_all: ClassVar[dict[str, Any]] = {}

    def __init__(self, keep: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.store, self.keep = Store(), keep

    def body(self, rows: Any) -> Any:
        bent = super().body(rows)
        other = self.keep(self, bent)
        return bent if other is None else bent + other


def _in_globals(model: Any, bent: Any) -> Any:
    global LAST
    LOSSES.append(bent.mean())
    CACHE["bent"] = bent
    LAST = [bent]


def _in_objects(model: Any, bent: Any) -> Any:
    model.store.last = bent
    model.store.pairs["of"] = (bent, 1)
    model.store.seen.append(bent)


def _in_classes(model: Any, bent: Any) -> Any:
    type(model).of_all["bent"] = bent
    model.store.every.append(bent)


def _in_caches(model: Any, bent: Any) -> Any:
    return ramp(int(bent.shape[1])) + slope(int(bent.shape[1]))


KEEPING = (_in_globals, _in_objects, _in_classes, _in_caches)


@pytest.fixture(autouse=True)
def _emptied() -> Iterator[None]:
    yield
    for one in (LOSSES, CACHE, Store.every, Keeping.of_all):
        one.clear()
    ramp.cache_clear()
    slope.cache_clear()


def _without_values() -> list[Any]:
    """Those that containers, or objects, of this module's hold."""
    gc.collect()
    held = [*LOSSES, *CACHE.values(), *(LAST or ()), *Store.every, *Keeping.of_all.values(), ramp(5), slope(5)]
    return [one for one in held if isinstance(one, FakeTensor)]


@pytest.mark.parametrize("keep", KEEPING)
def test_what_a_model_keeps_has_values(keep: Any) -> None:
    model = Keeping(keep)
    agree(model, IDS)
    kept = [model.store.last, *model.store.pairs["of"], *model.store.seen]
    assert not any(isinstance(one, FakeTensor) for one in kept)
    assert _without_values() == []
    torch.stack([one.sum() for one in LOSSES] or [torch.ones(())]).sum().item()


class Counting(Net):
    """Keeps sizes, in its class and beside it, and goes by none."""

    longest = 0

    def body(self, rows: Any) -> Any:
        type(self).longest = max(self.longest, rows.shape[1])
        type(self).last = rows
        LOSSES.append(rows.shape)
        CACHE["length"] = rows.shape[1]
        return super().body(rows)


def test_what_a_model_counts_is_a_number(traces: list[Any]) -> None:
    agree(Counting(), IDS)
    assert len(traces) == 1
    assert type(Counting.longest) is int
    assert Counting.longest == CACHE["length"] == 5
    assert not isinstance(Counting.last, FakeTensor)
    assert {type(size) for shape in LOSSES for size in shape} == {int}


def test_what_a_model_keeps_in_a_closure_has_values(traces: list[Any]) -> None:
    longest, last = 0, None
    empty: torch.Tensor

    class Closed(Net):
        def body(self, rows: Any) -> Any:
            nonlocal longest, last, empty
            longest, last = max(longest, rows.shape[1]), rows
            empty = rows
            return super().body(rows)

    def read() -> tuple[Any, Any, Any]:
        return longest, last, empty

    agree(Closed(), IDS)
    assert len(traces) == 1
    assert (type(longest), longest) == (int, 5)
    assert [type(one) for one in read()[1:]] == [torch.Tensor] * 2


def test_what_was_kept_of_a_model_that_has_no_trace() -> None:
    def keep(model: Any, bent: Any) -> Any:
        LOSSES.append(bent.mean())
        return bent.sum().item()

    falls_back(Keeping(keep), "depends on the values of tensors")
    assert _without_values() == []


def test_what_is_kept_where_nobody_finds_it_is_told_of() -> None:
    def kept() -> Iterator[None]:
        found = []
        while True:
            found.append((yield))

    holding: Any = kept()
    next(holding)
    falls_back(Keeping(lambda model, bent: holding.send(bent)), "the model keeps tensors of its passes where a trace")
    embgrad.gradients(Net(), IDS, PROJECTION, compile=True)


class Proxy:
    """Raises whatever is asked of it, as one does that stands for what is not there yet."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is not there yet")


PROXY = Proxy()


def test_globals_that_raise_are_no_matter() -> None:
    model = Keeping(_in_objects)
    model.store.last = PROXY
    agree(model, IDS)
    assert model.store.__dict__["last"] is not None

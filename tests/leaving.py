"""Where a user's program may keep what its model computes, beside the model: nothing without a value is to stay there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad

__all__ = ["KEEPS", "Store", "assert_draws", "assert_values_left", "keeping"]


class Store:
    """An object of the program's."""

    def __init__(self) -> None:
        self.last: Any = None
        self.every: list[Any] = [0]


#: By where it is kept what keeps a tensor, given the globals of the model's program, its class and what the functions share.
KEEPS: dict[str, Callable[[dict[str, Any], type, Store], Callable[[Any], None]]] = {
    "a global": lambda program, kind, store: lambda tensor: program.update(LATEST=tensor),
    "a list": lambda program, kind, store: program["EVERY"].append,
    "a dict": lambda program, kind, store: lambda tensor: program["BY_NAME"].update(it=[tensor]),
    "an object": lambda program, kind, store: lambda tensor: setattr(program["STORE"], "last", (tensor, 1)),
    "a class": lambda program, kind, store: lambda tensor: setattr(kind, "latest", tensor),
    "an object of the function's": lambda program, kind, store: lambda tensor: store.every.append(tensor),
    "a closure": lambda program, kind, store: _closed(store),
}


def _closed(store: Store) -> Callable[[Any], None]:
    latest: Any
    before: Any = 0

    def keep(tensor: Any) -> None:
        nonlocal latest, before
        latest, before = tensor, before if isinstance(before, list) else [tensor]
        store.last = lambda: (latest, before)

    return keep


def keeping(program: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """For this test a program has the globals that `KEEPS` writes to, with nothing in them."""
    for name, value in {"LATEST": None, "EVERY": [], "BY_NAME": {}, "STORE": Store()}.items():
        monkeypatch.setitem(program, name, value)


def assert_values_left(
    model: Any, ids: np.ndarray, program: dict[str, Any], store: Store, has_value: Callable[[Any], bool]
) -> None:
    """Run a trace, which is new and is compared with the model's own run, and look at what the program holds then.

    Args:
        model: keeps what it computes, by one of `KEEPS`.
        ids: the batch.
        program: the globals that it writes to.
        store: what functions share.
        has_value: says so of a tensor of the framework's.
    """
    found = embgrad.gradients(model, ids, embgrad.Sum(), compile=True)
    assert found.provenance["compiled"], found.provenance["uncompiled"]
    closed = store.last() if callable(store.last) else ()
    kept = [
        *(program["LATEST"], *program["EVERY"], *program["BY_NAME"].get("it", ()), *(program["STORE"].last or ())),
        *(getattr(type(model), "latest", None), *store.every, *_flat(closed)),
    ]
    tensors = [one for one in kept if one is not None and not isinstance(one, int)]
    assert tensors, "the model's own run keeps one, too"
    assert all(map(has_value, tensors)), kept


def assert_draws(model: Any, ids: np.ndarray) -> None:
    """A trace would hold for good what the model draws from a generator of its program."""
    with pytest.warns(embgrad.EmbgradWarning, match="draws random numbers .* which a trace would draw once"):
        first = embgrad.gradients(model, ids, embgrad.Sum(), compile=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", embgrad.EmbgradWarning)
        second = embgrad.gradients(model, ids, embgrad.Sum(), compile=True)
    assert not np.allclose(first.values, second.values)


def _flat(held: Any) -> list[Any]:
    return [one for part in held for one in (part if isinstance(part, list) else [part])]

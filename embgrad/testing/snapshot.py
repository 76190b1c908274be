"""Snapshots of all state that a call must restore: models, arguments, random generators and settings of the process."""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.objectives import Objective
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.row_sparse import RowSparse

__all__ = ["Same", "Snapshot", "Source", "contents", "different"]


class Same:
    """An object in a state, compared by identity. It is kept alive, so that no later object gets its address."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return f"the {type(self.value).__name__} at {id(self.value):#x}"


class Source(Protocol):
    """A source of random numbers, such as a harness."""

    def seed(self, seed: int) -> None:
        """Seed the source."""
        ...

    def draw_states(self) -> Any:
        """Return the source's state."""
        ...


class Snapshot:
    """A snapshot of the state before a call.

    Args:
        looks: functions by name that return state as comparable, possibly nested values, such as a model's state.
        sources: the sources of random numbers beside Python's and NumPy's.
        seed: the seed of all random generators.
    """

    def __init__(
        self,
        looks: Mapping[str, Callable[[], Any]],
        arguments: Sequence[Any] = (),
        sources: Sequence[Source] = (),
        seed: int = 0,
    ) -> None:
        self._looks, self._arguments, self._sources, self._seed = looks, arguments, sources, seed
        self.seed()
        self._numbers = self._next_numbers()
        self._before = self._look_at()
        self.seed()

    def seed(self) -> None:
        """Reset every source of random numbers to its state before the call."""
        random.seed(self._seed)
        np.random.seed(self._seed)
        for source in self._sources:
            source.seed(self._seed)

    def differences(self, random_moves: bool = False) -> dict[str, str]:
        """Return the state that differs from the snapshot, as descriptions of the difference by path.

        Args:
            random_moves: ignore the random generators, as random numbers may have been drawn.
        """
        numbers = {} if random_moves else different("random numbers", self._numbers, self._next_numbers())
        return {**numbers, **different("", self._before, self._look_at())}

    def _next_numbers(self) -> dict[str, Any]:
        """Return the state of each source of random numbers; sources whose state cannot be read advance."""
        name, keys, *rest = np.random.get_state()
        drawn = {str(number): source.draw_states() for number, source in enumerate(self._sources)}
        numpy = hash((name, np.asarray(keys).tobytes(), *rest))
        return {"of Python": hash(random.getstate()), "of NumPy": numpy, **drawn}

    def _look_at(self) -> dict[str, Any]:
        return {
            **{name: look() for name, look in self._looks.items()},
            "arguments": [contents(argument) for argument in self._arguments],
            "threads": sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("embgrad")),
            "environment": dict(os.environ),
            "numpy errors": np.geterr(),
            "numpy printing": {name: str(value) for name, value in np.get_printoptions().items()},
            "warning filters": list(warnings.filters),
            "recursion limit": sys.getrecursionlimit(),
            "tracing": (sys.gettrace(), sys.getprofile()),
            "folder": os.getcwd(),
            "streams": (id(sys.stdout), id(sys.stderr)),
        }


def different(path: str, before: Any, after: Any) -> dict[str, str]:
    """Return the differences between two nested values, as descriptions by path."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        differences = {}
        for key in dict.fromkeys([*before, *after]):
            if key not in before or key not in after:
                differences[f"{path}/{key}"] = "is new" if key not in before else "is gone"
            else:
                differences |= different(f"{path}/{key}", before[key], after[key])
        return differences
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)) and len(before) == len(after):
        differences = {}
        for number, both in enumerate(zip(before, after, strict=True)):
            differences |= different(f"{path}/{number}", *both)
        return differences
    return {} if before == after else {path: f"{_cut(before)} is now {_cut(after)}"}


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def contents(value: Any) -> Any:
    """Return a value's numbers for a later comparison, or the object's id if it holds no numbers."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ("objects", value.shape, tuple(map(id, value.ravel())))
        return (value.dtype.str, value.shape, value.tobytes(), value.flags.writeable)
    if isinstance(value, TokenBatch):
        return [contents(getattr(value, name)) for name in ("ids", "mask", "types", "words", "truncated", "tokens")]
    if isinstance(value, (Objective, RowSparse)):
        return {name: contents(entry) for name, entry in vars(value).items()}
    if isinstance(value, EmbeddingGradients):
        return [contents(entry) for entry in (value.values, value.activations, value.ids, value.objective, value.mask)]
    if isinstance(value, Mapping):
        return {repr(key): contents(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [contents(entry) for entry in value]
    for name in ("asnumpy", "numpy"):
        if callable(getattr(value, name, None)):
            return contents(np.asarray(getattr(value, name)()))
    return value if isinstance(value, (str, bytes, int, float, type(None))) and value == value else id(value)

"""Everything that a call must leave as it was: models, arguments, random numbers and settings of the process."""

from __future__ import annotations

import os
import random
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

import embgrad
from tests.fuzz.worlds import World

__all__ = ["Snapshot", "contents", "seeded"]


def seeded(frameworks: Sequence[str], seed: int) -> None:
    """Set every source of random numbers."""
    random.seed(seed)
    np.random.seed(seed)
    if "torch" in frameworks:
        import torch

        torch.manual_seed(seed)
    if "tensorflow" in frameworks:
        import tensorflow as tf

        tf.random.set_seed(seed)
    if "gluon" in frameworks:
        import mxnet as mx

        mx.random.seed(seed)


def _next_numbers(frameworks: Sequence[str]) -> dict[str, Any]:
    """Where each source of random numbers stands; asking moves those that cannot be looked at."""
    found: dict[str, Any] = {"random of python": hash(random.getstate()), "random of numpy": _numpy_state()}
    if "torch" in frameworks:
        import torch

        found["random of torch"] = torch.get_rng_state().numpy().tobytes()
    if "tensorflow" in frameworks:
        import tensorflow as tf

        found["random of tensorflow"] = tf.random.uniform(()).numpy().item()
    if "gluon" in frameworks:
        import mxnet as mx

        found["random of mxnet"] = mx.nd.random.uniform(shape=(1,)).asscalar().item()
    return found


def _numpy_state() -> int:
    name, keys, *rest = np.random.get_state()
    return hash((name, np.asarray(keys).tobytes(), *rest))


class Snapshot:
    """What there is before a call.

    Args:
        worlds: the models that the call touches.
        arguments: what it is given.
        seed: sets the random numbers.
    """

    def __init__(self, worlds: Sequence[World], arguments: Sequence[Any], seed: int) -> None:
        self._worlds, self._arguments, self._seed = worlds, arguments, seed
        self._frameworks = [world.framework for world in worlds]
        seeded(self._frameworks, seed)
        expected = _next_numbers(self._frameworks)
        self._before = self._looked_at()
        seeded(self._frameworks, seed)
        self._numbers = expected

    def differences(self, random_moves: bool = False) -> list[str]:
        """What is no longer as it was."""
        after = {} if random_moves else _next_numbers(self._frameworks)
        changed = [name for name, value in after.items() if value != self._numbers[name]]
        now = self._looked_at()
        return [*changed, *different("", self._before, now)]

    def _looked_at(self) -> dict[str, Any]:
        return {
            **{f"model {number}": world.harness.state(world.model) for number, world in enumerate(self._worlds)},
            "arguments": [contents(one) for one in self._arguments],
            "threads": sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("embgrad")),
            "environment": dict(os.environ),
            "numpy errors": np.geterr(),
            "numpy printing": {name: str(one) for name, one in np.get_printoptions().items()},
            "warning filters": list(warnings.filters),
            "recursion limit": sys.getrecursionlimit(),
            "folder": os.getcwd(),
            "streams": (id(sys.stdout), id(sys.stderr)),
        }


def different(path: str, before: Any, after: Any) -> list[str]:
    """Where two nested values differ, as paths."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found = []
        for key in dict.fromkeys([*before, *after]):
            if key not in before or key not in after:
                found.append(f"{path}/{key} {'is new' if key not in before else 'is gone'}")
            else:
                found += different(f"{path}/{key}", before[key], after[key])
        return found
    if isinstance(before, (list, tuple)) and isinstance(after, (list, tuple)) and len(before) == len(after):
        return [
            one
            for number, both in enumerate(zip(before, after, strict=True))
            for one in different(f"{path}/{number}", *both)
        ]
    return [] if before == after else [f"{path}: {_cut(before)} is now {_cut(after)}"]


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 80 else text[:77] + "..."


def contents(value: Any) -> Any:
    """A value's numbers, to compare with later; of what holds none, the object itself."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return ("objects", value.shape, tuple(map(id, value.ravel())))
        return (value.dtype.str, value.shape, value.tobytes(), value.flags.writeable)
    if isinstance(value, embgrad.TokenBatch):
        return [contents(getattr(value, name)) for name in ("ids", "mask", "types", "words", "truncated", "tokens")]
    if isinstance(value, (embgrad.Objective, embgrad.RowSparse)):
        return {name: contents(one) for name, one in vars(value).items()}
    if isinstance(value, embgrad.EmbeddingGradients):
        return [contents(one) for one in (value.values, value.activations, value.ids, value.objective, value.mask)]
    if isinstance(value, Mapping):
        return {repr(key): contents(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [contents(one) for one in value]
    for name in ("asnumpy", "numpy"):
        if callable(getattr(value, name, None)):
            return contents(np.asarray(getattr(value, name)()))
    return value if isinstance(value, (str, bytes, int, float, type(None))) and value == value else id(value)


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """The arrays of a result, which are the caller's own."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, embgrad.EmbeddingGradients):
        for one in (value.values, value.activations, value.before):
            if one is not None:
                yield one
    elif isinstance(value, embgrad.TableGradients):
        yield from (value.lookup, value.head)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from arrays_in(one)

"""What can go wrong with the weights of a model, written once on the few functions that a framework supplies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Change = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Weights:
    """A framework's access to the weights of a model.

    Attributes:
        find: takes a model, a layer's number and one of "query", "key", "value", "output" (of attention) and "up" (the first of
            the feed-forward part), and returns the dense layer; in a model without attention another square one.
        parameter: takes a dense layer and "weight" or "bias".
        table: returns the table of the words, as a parameter.
        every: returns all trainable parameters.
        read: returns a parameter's numbers.
        write: puts numbers into a parameter.
    """

    find: Callable[[Any, int, str], Any]
    parameter: Callable[[Any, str], Any]
    table: Callable[[Any], Any]
    every: Callable[[Any], Sequence[Any]]
    read: Callable[[Any], np.ndarray]
    write: Callable[[Any, np.ndarray], None]


def changes_of_weights(native: Weights) -> dict[str, Change]:
    """Return the changes by name; each takes a model and its world, and returns the model."""

    def rewritten(
        find: Callable[[Any], Sequence[Any]],
        change: Callable[[np.ndarray, np.random.Generator], np.ndarray],
        stream: int = 0,
    ) -> Change:
        def apply(model: Any, world: Any) -> Any:
            for parameter in find(model):
                native.write(parameter, change(native.read(parameter), np.random.default_rng([world.seed, stream])))
            return model

        return apply

    def one(number: int, name: str, kind: str = "weight") -> Callable[[Any], Sequence[Any]]:
        return lambda model: [native.parameter(native.find(model, number, name), kind)]

    def exchanged(one: Any, other: Any) -> None:
        first, second = native.read(one), native.read(other)
        native.write(one, second)
        native.write(other, first)

    def swapped(model: Any, _: Any) -> Any:
        query, key = (native.find(model, 0, name) for name in ("query", "key"))
        for kind in ("weight", "bias"):
            exchanged(native.parameter(query, kind), native.parameter(key, kind))
        return model

    def turned(value: np.ndarray, _: Any) -> np.ndarray:
        return np.ascontiguousarray(value.T)

    def table(model: Any) -> Sequence[Any]:
        return [native.table(model)]

    return {
        "transposed-query": rewritten(one(1, "query"), turned),
        "swapped-first": swapped,
        "bias-not-loaded": rewritten(one(1, "up", "bias"), lambda value, _: np.zeros_like(value)),
        "other-table": rewritten(table, lambda value, random: random.normal(0, 0.4, value.shape), 7),
    }

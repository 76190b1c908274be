"""What can go wrong with the weights of a model, written once on the few functions that a framework supplies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Change = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Weights:
    """A framework's access to the weights of a model.

    Attributes:
        find: takes a model, a layer's number and one of "query", "key" and "up" (the first of the feed-forward part), and returns
            the dense layer.
        parameter: takes a dense layer and "weight" or "bias".
        table: returns the table of the words, as a parameter.
        read: returns a parameter's numbers.
        write: puts numbers into a parameter.
    """

    find: Callable[[Any, int, str], Any]
    parameter: Callable[[Any, str], Any]
    table: Callable[[Any], Any]
    read: Callable[[Any], np.ndarray]
    write: Callable[[Any, np.ndarray], None]


def changes_of_weights(native: Weights) -> dict[str, Change]:
    """Return the changes by name; each takes a model and its world, and returns the model."""

    def rewritten(number: int, name: str, kind: str, change: Callable[[np.ndarray], np.ndarray]) -> Change:
        def apply(model: Any, _: Any) -> Any:
            parameter = native.parameter(native.find(model, number, name), kind)
            native.write(parameter, change(native.read(parameter)))
            return model

        return apply

    def swapped(model: Any, _: Any) -> Any:
        query, key = (native.find(model, 0, name) for name in ("query", "key"))
        for kind in ("weight", "bias"):
            first, second = native.parameter(query, kind), native.parameter(key, kind)
            values = native.read(first), native.read(second)
            native.write(first, values[1])
            native.write(second, values[0])
        return model

    def with_other_table(model: Any, world: Any) -> Any:
        table = native.table(model)
        random = np.random.default_rng([world.seed, 7])
        native.write(table, random.normal(0, 0.4, native.read(table).shape))
        return model

    return {
        "transposed-query": rewritten(1, "query", "weight", lambda value: np.ascontiguousarray(value.T)),
        "swapped-first": swapped,
        "bias-not-loaded": rewritten(1, "up", "bias", np.zeros_like),
        "other-table": with_other_table,
    }

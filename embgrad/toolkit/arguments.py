"""The arguments of a user's call of a model: their names, and the arrays of whole numbers among them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["integer_arguments", "named_arguments"]


def named_arguments(
    parameters: Sequence[inspect.Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a call's arguments by the names of the model's parameters, or None if they do not match the signature.

    Args:
        parameters: the parameters of the model's `forward`, `call` or `__call__`, without `self`.
        args: the call's positional arguments.
        kwargs: its keyword arguments.
    """
    try:
        bound = inspect.Signature(parameters).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):  # the call itself will raise, with a message about what is wrong
        return None
    return dict(bound.arguments)


def integer_arguments(
    arguments: Mapping[str, Any],
    to_integers: Callable[[str, Any], np.ndarray | None],
    names: Sequence[str] = (),
    *,
    sequences: bool = True,
) -> dict[str, np.ndarray]:
    """Return the arguments that hold whole numbers, as NumPy arrays by name.

    An entry of a dict is named by its key. An entry of a sequence is named by the sequence and its index, such as `inputs.0`.

    Args:
        arguments: the arguments by name, see `named_arguments`.
        to_integers: takes a name and a value, and returns a copy of its numbers, or None if they are not whole.
        names: the names of a sequence's entries, where the model declares them. They apply to sequences of this length.
        sequences: also search lists and tuples. A framework whose users pass ids as floats must not: the initial state of a
            recurrent layer, a list of zeros, would count as ids.
    """
    integers: dict[str, np.ndarray] = {}
    for name, value in arguments.items():
        for leaf_name, leaf in _leaves(name, value, names, sequences):
            numbers = to_integers(leaf_name, leaf)
            if numbers is not None:
                integers.setdefault(leaf_name, numbers)
    return integers


def _leaves(name: str, value: Any, names: Sequence[str], sequences: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(str(key), entry, names, sequences)
    elif sequences and isinstance(value, (list, tuple)):
        entry_names = names if len(names) == len(value) else [f"{name}.{number}" for number in range(len(value))]
        for entry_name, entry in zip(entry_names, value, strict=True):
            yield from _leaves(entry_name, entry, names, sequences)
    else:
        yield name, value

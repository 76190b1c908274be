"""Names the arguments of a user's own call of a model, and finds the whole numbers among them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["integer_arguments", "named_arguments"]


def named_arguments(
    parameters: Sequence[inspect.Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a call's arguments by the names of the model's parameters, or None where they do not fit these.

    Args:
        parameters: those of the model's `forward`, `call` or `__call__`, without `self`.
        args: the call's positional arguments.
        kwargs: its keyword arguments.
    """
    try:
        bound = inspect.Signature(parameters).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):  # the call itself says what is wrong with it
        return None
    return dict(bound.arguments)


def integer_arguments(
    arguments: Mapping[str, Any],
    to_integers: Callable[[str, Any], np.ndarray | None],
    names: Sequence[str] = (),
    *,
    sequences: bool = True,
) -> dict[str, np.ndarray]:
    """Return the arguments that are whole numbers, as NumPy.

    An entry of a dict goes by its key, and an entry of a sequence by the sequence's name and its number, such as `inputs.0`.

    Args:
        arguments: by name, see `named_arguments`.
        to_integers: takes a name and a value, and returns a copy of its numbers, or None where they are not whole.
        names: the names of the entries of a sequence of that length, where the model declares them.
        sequences: enter lists and tuples. A framework whose users pass ids as floats does not: a recurrent layer's first state,
            a list of zeros, would count as ids.
    """
    found: dict[str, np.ndarray] = {}
    for name, value in arguments.items():
        for leaf_name, leaf in _leaves(name, value, names, sequences):
            numbers = to_integers(leaf_name, leaf)
            if numbers is not None:
                found.setdefault(leaf_name, numbers)
    return found


def _leaves(name: str, value: Any, names: Sequence[str], sequences: bool) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _leaves(str(key), entry, names, sequences)
    elif sequences and isinstance(value, (list, tuple)):
        spelled = names if len(names) == len(value) else [f"{name}.{number}" for number in range(len(value))]
        for entry_name, entry in zip(spelled, value, strict=True):
            yield from _leaves(entry_name, entry, names, sequences)
    else:
        yield name, value

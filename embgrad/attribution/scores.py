"""The scores of one or several attributions, by name, checked against their batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from embgrad.common.arrays import to_numpy
from embgrad.common.finite import not_finite
from embgrad.errors import EmbgradError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.results.attribution import Attribution

__all__ = ["are_several", "by_name", "scores_by_name", "snake_case"]


def are_several(attribution: Any) -> bool:
    """Return whether an argument holds attributions, or methods, by name or in a list."""
    return isinstance(attribution, (Mapping, list, tuple))


def snake_case(name: str) -> str:
    """Return the name of a class of methods in snake case, as `attribute` takes it."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=X)(?=Gradient)", "_", name).lower()


def by_name(argument: Any, what: str, name_of: Callable[[Any], str]) -> dict[str, Any]:
    """Return the entries of an argument by name: of a mapping by its own, of a list by `name_of`, a repeated one with `#1`."""
    if not are_several(argument):
        return {name_of(argument): argument}
    if not argument:
        raise EmbgradError(f"{what} is {brief(argument)}: expected one {what} at least")
    if isinstance(argument, Mapping):
        if wrong := [name for name in argument if not isinstance(name, str)]:
            raise EmbgradError(f"{what} names a method {brief(wrong[0])}: expected names that are text")
        return dict(argument)
    named: dict[str, Any] = {}
    for entry in argument:
        name = name_of(entry)
        repeats = sum(other.partition("#")[0] == name for other in named)
        named[f"{name}#{repeats}" if repeats else name] = entry
    return named


def scores_by_name(attribution: Any, batch: TokenBatch, removable: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores of attributions by the names of their methods, float64, (example, position).

    Args:
        attribution: an `Attribution` or an array of scores, (example, position); a mapping of names to these; or a list of
            attributions, which are named by their methods, a repeated one with `#1`, `#2` and so on.
        batch: the batch that they must be of.
        removable: the positions whose scores must be finite.
    """
    named = by_name(attribution, "attribution", _name)
    return {name: _check(name, entry, batch, removable) for name, entry in named.items()}


def _name(attribution: Any) -> str:
    return snake_case(attribution.method) if isinstance(attribution, Attribution) else "scores"


def _check(name: str, attribution: Any, batch: TokenBatch, removable: np.ndarray) -> np.ndarray:
    scores = _array(name, attribution)
    if scores.shape != batch.shape:
        raise EmbgradError(
            f"the attribution {name!r} has scores of shape {scores.shape}, and the batch {batch.shape}: expected an attribution "
            "of this batch, with as many examples and positions"
        )
    if isinstance(attribution, Attribution):
        differs = batch.real & ((attribution.ids != batch.ids) | ~attribution.real)
        if differs.any():
            place = tuple(np.argwhere(differs)[0])
            theirs = f"the id {attribution.ids[place]}" if attribution.real[place] else "padding"
            raise EmbgradError(
                f"the attribution {name!r} is of another batch: at example {place[0]}, position {place[1]} it has {theirs}, and "
                f"the batch the id {batch.ids[place]}. Attribute this batch"
            )
    wrong = not_finite(np.where(removable, scores, 0.0))
    if wrong is not None:
        raise EmbgradError(
            f"the scores of the attribution {name!r} are {wrong.at('example', 'position')}: expected finite numbers, which "
            "can be ranked"
        )
    return np.where(removable, scores, 0.0)


def _array(name: str, attribution: Any) -> np.ndarray:
    """Return the scores of an attribution, float64."""
    if isinstance(attribution, Attribution):
        return attribution.scores
    try:
        array = to_numpy(attribution) if hasattr(attribution, "shape") else np.array(None)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "iuf" or array.ndim != 2:
        raise EmbgradError(
            f"the attribution {name!r} is {brief(attribution)}: expected what embgrad.attribute returns, or an array of scores, "
            "(example, position)"
        )
    return array.astype(np.float64)

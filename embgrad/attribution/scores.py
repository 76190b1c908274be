"""The scores of one attribution or of several, by name, checked against the batch that they are of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.attribution.attribute import METHODS
from embgrad.common.arrays import to_numpy
from embgrad.common.finite import not_finite
from embgrad.errors import EmbgradError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.results.attribution import Attribution

__all__ = ["are_several", "scores_by_name"]

#: The names of methods in snake case by those of their classes.
NAMES: Final = {cls.__name__: name for name, cls in METHODS.items()}


def are_several(attribution: Any) -> bool:
    """Return whether an argument holds attributions by name or in a list."""
    return isinstance(attribution, (Mapping, list, tuple))


def scores_by_name(attribution: Any, batch: TokenBatch, removable: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores of attributions by the names of their methods, float64, (example, position).

    Args:
        attribution: an `Attribution` or an array of scores, (example, position); a mapping of names to these; or a list of
            attributions, which are named by their methods, a repeated one with `#1`, `#2` and so on.
        batch: the batch that they must be of.
        removable: the positions whose scores must be finite.

    Raises:
        EmbgradError: there is none, it is of another batch, or a score is not finite.
    """
    named = _by_name(attribution)
    return {name: _checked(name, entry, batch, removable) for name, entry in named.items()}


def _by_name(attribution: Any) -> dict[str, Any]:
    if not are_several(attribution):
        return {_name(attribution): attribution}
    if not attribution:
        raise EmbgradError(f"attribution is {brief(attribution)}: expected one attribution at least")
    if isinstance(attribution, Mapping):
        if wrong := [name for name in attribution if not isinstance(name, str)]:
            raise EmbgradError(f"attribution names a method {brief(wrong[0])}: expected names that are text")
        return dict(attribution)
    named: dict[str, Any] = {}
    for entry in attribution:
        name = _name(entry)
        repeats = sum(other.partition("#")[0] == name for other in named)
        named[f"{name}#{repeats}" if repeats else name] = entry
    return named


def _name(attribution: Any) -> str:
    return NAMES.get(attribution.method, attribution.method) if isinstance(attribution, Attribution) else "scores"


def _checked(name: str, attribution: Any, batch: TokenBatch, removable: np.ndarray) -> np.ndarray:
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

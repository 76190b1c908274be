"""Differences between the weights of a region of two models: by how much, transposed, or swapped with one another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from embgrad.backend.protocol import Weight
from embgrad.common.metrics import figures_of
from embgrad.common.tolerance import unit_roundoff
from embgrad.comparison.bisection.readings import Side
from embgrad.comparison.bisection.records import Suspect
from embgrad.comparison.weight_pairs import paired_by_order, paired_weights

__all__ = ["suspects"]


def suspects(a: Side, b: Side, weights: tuple[Sequence[Weight], Sequence[Weight]]) -> tuple[Suspect, ...]:
    """Return the weights of a region of both models; those that differ come first, largest difference first.

    Args:
        a: the first model.
        b: the second model.
        weights: the weights of the region in a, and in b.
    """
    same = a.reader.backend.name == b.reader.backend.name
    known, *_ = paired_weights(a.weights, b.weights, same=same)
    inside = {id(weight) for weight in (*weights[0], *weights[1])}
    pairs: list[tuple[Weight | None, Weight | None]] = [
        pair for pair in known if id(pair[0]) in inside or id(pair[1]) in inside
    ]
    paired = {id(weight) for pair in known for weight in pair}
    more, left, others = paired_by_order(*([weight for weight in side if id(weight) not in paired] for side in weights))
    pairs += [*more, *((weight, None) for weight in left), *((None, weight) for weight in others)]
    compared = [_compared(first, second, same) for first, second in pairs]
    if any(suspect.differs and suspect.a and suspect.b for suspect in compared):
        index = _WeightIndex(a, b, [*known, *more])
        compared = [index.located(suspect) if suspect.differs else suspect for suspect in compared]
    return tuple(sorted(compared, key=lambda suspect: (not suspect.differs, -suspect.relative_l2)))


def in_checkpoint_order(weight: Weight) -> np.ndarray:
    """Return the values of a weight; in a BERT's encoder, with the axes in the checkpoint's order."""
    value = weight.get()
    return np.ascontiguousarray(value.T) if weight.transposed else value


def _compared(first: Weight | None, second: Weight | None, same: bool) -> Suspect:
    if first is None or second is None:
        present = first or second
        assert present is not None
        only = f"only in {'b' if first is None else 'a'}"
        names = [None if weight is None else weight.name for weight in (first, second)]
        return Suspect(names[0], names[1], float("inf"), only, present.canonical, present.module)
    a, b = in_checkpoint_order(first), in_checkpoint_order(second)
    relation, relative = _relation(a, b, _slack(first, second), turns=not same and first.canonical is None)
    return Suspect(first.name, second.name, relative, relation, first.canonical, first.module)


def _slack(first: Weight, second: Weight) -> float:
    """Return how much a value may change when it is stored in the coarser of two dtypes."""
    return 0.0 if first.dtype == second.dtype else 2 * max(unit_roundoff(first.dtype), unit_roundoff(second.dtype))


def _relation(a: np.ndarray, b: np.ndarray, slack: float, *, turns: bool) -> tuple[str, float]:
    """Return how b is related to a, and the relative L2.

    Args:
        a: the values of the first weight.
        b: the values of the second weight.
        slack: the relative L2 up to which they are equal.
        turns: whether the frameworks may store them transposed, so that the transpose counts as equal.
    """
    if [size for size in a.shape if size != 1] == [size for size in b.shape if size != 1]:
        b = b.reshape(a.shape)  # a bias may have an additional axis of size 1
    straight = figures_of(a, b).relative_l2 if a.shape == b.shape else float("inf")
    if straight <= slack:
        return "equal", straight
    turned = figures_of(a, b.T).relative_l2 if a.ndim > 1 and a.shape == b.shape[::-1] else float("inf")
    if turned <= slack:
        return ("equal", turned) if turns else ("transposed", straight)
    if turns:
        straight = min(straight, turned)
    if not np.isfinite(straight) and a.shape != b.shape:
        return f"of shape {b.shape} in place of {a.shape}", straight
    return "differs", straight


class _WeightIndex:
    """An index of all weights of both models by their bits, which finds a weight of a in another weight's place in b."""

    def __init__(self, a: Side, b: Side, pairs: Iterable[tuple[Weight, Weight]]) -> None:
        self._b_of = {first.name: second.name for first, second in pairs}
        self._a = {weight.name: weight for weight in a.weights}
        self._b = {weight.name: weight for weight in b.weights}
        self._holding: Mapping[bytes, list[str]] = _by_bits(a.weights)

    def located(self, suspect: Suspect) -> Suspect:
        """Return the suspect with the relation that names the weight which b holds in its place, if there is one."""
        if suspect.a is None or suspect.b is None or suspect.relation != "differs":
            return suspect
        bits = _bits(self._b[suspect.b])
        matches = [name for name in self._holding.get(bits, ()) if name != suspect.a]
        if len(matches) != 1:  # many weights are all zeros, or all ones
            return suspect
        (name,) = matches
        shown = self._a[name].canonical or name
        partner = self._b_of.get(name)
        swapped = partner is not None and _bits(self._b[partner]) == _bits(self._a[suspect.a])
        relation = f"swapped with {shown}" if swapped else f"holds a's {shown}"
        return Suspect(suspect.a, suspect.b, suspect.relative_l2, relation, suspect.canonical, suspect.module)


def _by_bits(weights: Sequence[Weight]) -> dict[bytes, list[str]]:
    names: dict[bytes, list[str]] = {}
    for weight in weights:
        names.setdefault(_bits(weight), []).append(weight.name)
    return names


def _bits(weight: Weight) -> bytes:
    value = in_checkpoint_order(weight)
    return hashlib.sha256(repr(value.shape).encode() + value.astype(np.float64).tobytes()).digest()

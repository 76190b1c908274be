"""How the weights of a part differ between two models: by how much, transposed, or swapped with one another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.backend.protocol import Weight
from embgrad.common.metrics import figures_of
from embgrad.common.tolerance import unit_roundoff
from embgrad.comparison.bisection.pair import Side, paired_by_order, paired_weights

__all__ = ["Suspect", "suspects"]


@dataclass(frozen=True)
class Suspect:
    """A weight of the part at which two models part.

    Attributes:
        a: its name in the one model; None where that has none to go with b's.
        b: its name in the other.
        relative_l2: how far b's is from a's, laid as a's; infinite where they cannot be compared.
        relation: "equal", "differs", "transposed", "swapped with …", "holds a's …", "of shape …", "only in a" or "only in b".
        canonical: what a BERT's checkpoint calls it; None for others.
        module: the path of the module in a that owns it, or in b where a has none.
    """

    a: str | None
    b: str | None
    relative_l2: float
    relation: str
    canonical: str | None = None
    module: str = ""

    @property
    def name(self) -> str:
        """A name for people."""
        return self.canonical or self.a or self.b or ""

    @property
    def differs(self) -> bool:
        """Whether it sets the models apart."""
        return self.relation != "equal"

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        relative = self.relative_l2 if np.isfinite(self.relative_l2) else None
        return {
            "a": self.a,
            "b": self.b,
            "relative_l2": relative,
            "relation": self.relation,
            "canonical": self.canonical,
        }


def suspects(a: Side, b: Side, weights: tuple[Sequence[Weight], Sequence[Weight]]) -> tuple[Suspect, ...]:
    """The weights of a part of both models, those that differ first, by how much.

    Args:
        a: the one model.
        b: the other.
        weights: those of the part in a, and in b.
    """
    same = a.reader.backend.name == b.reader.backend.name
    known, *_ = paired_weights(a.weights, b.weights, same=same)
    inside = {id(one) for one in (*weights[0], *weights[1])}
    pairs: list[tuple[Weight | None, Weight | None]] = [
        pair for pair in known if id(pair[0]) in inside or id(pair[1]) in inside
    ]
    paired = {id(one) for pair in known for one in pair}
    more, left, others = paired_by_order(*([one for one in side if id(one) not in paired] for side in weights))
    pairs += [*more, *((one, None) for one in left), *((None, two) for two in others)]
    found = [_compared(one, other, same) for one, other in pairs]
    if any(one.differs and one.a and one.b for one in found):
        elsewhere = _Elsewhere(a, b, [*known, *more])
        found = [elsewhere.told(one) if one.differs else one for one in found]
    return tuple(sorted(found, key=lambda one: (not one.differs, -one.relative_l2)))


def laid(weight: Weight) -> np.ndarray:
    """Its values, in a BERT's encoder laid as a checkpoint's."""
    value = weight.get()
    return np.ascontiguousarray(value.T) if weight.transposed else value


def _compared(one: Weight | None, other: Weight | None, same: bool) -> Suspect:
    if one is None or other is None:
        present = one or other
        assert present is not None
        only = f"only in {'b' if one is None else 'a'}"
        names = [None if weight is None else weight.name for weight in (one, other)]
        return Suspect(names[0], names[1], float("inf"), only, present.canonical, present.module)
    a, b = laid(one), laid(other)
    relation, relative = _relation(a, b, _slack(one, other), turns=not same and one.canonical is None)
    return Suspect(one.name, other.name, relative, relation, one.canonical, one.module)


def _slack(one: Weight, other: Weight) -> float:
    """By how much a value may change as it is held in the coarser of two dtypes."""
    return 0.0 if one.dtype == other.dtype else 2 * max(unit_roundoff(one.dtype), unit_roundoff(other.dtype))


def _relation(a: np.ndarray, b: np.ndarray, slack: float, *, turns: bool) -> tuple[str, float]:
    """How b is related to a.

    Args:
        a: the one's values.
        b: the other's.
        slack: the relative L2 up to which they are equal.
        turns: whether the frameworks may hold them turned, so that the transpose is equal.
    """
    if [size for size in a.shape if size != 1] == [size for size in b.shape if size != 1]:
        b = b.reshape(a.shape)  # a bias may have an axis more
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


class _Elsewhere:
    """All weights of both models by their bits, so that one is found in another's place."""

    def __init__(self, a: Side, b: Side, pairs: Iterable[tuple[Weight, Weight]]) -> None:
        self._b_of = {one.name: other.name for one, other in pairs}
        self._a = {one.name: one for one in a.weights}
        self._b = {one.name: one for one in b.weights}
        self._holding: Mapping[bytes, list[str]] = _by_bits(a.weights)

    def told(self, suspect: Suspect) -> Suspect:
        """The same, with what b holds in its place."""
        if suspect.a is None or suspect.b is None or suspect.relation != "differs":
            return suspect
        held = _bits(self._b[suspect.b])
        there = [name for name in self._holding.get(held, ()) if name != suspect.a]
        if len(there) != 1:  # zeros and ones are everywhere
            return suspect
        (name,) = there
        shown = self._a[name].canonical or name
        partner = self._b_of.get(name)
        swapped = partner is not None and _bits(self._b[partner]) == _bits(self._a[suspect.a])
        relation = f"swapped with {shown}" if swapped else f"holds a's {shown}"
        return Suspect(suspect.a, suspect.b, suspect.relative_l2, relation, suspect.canonical, suspect.module)


def _by_bits(weights: Sequence[Weight]) -> dict[bytes, list[str]]:
    found: dict[bytes, list[str]] = {}
    for one in weights:
        found.setdefault(_bits(one), []).append(one.name)
    return found


def _bits(weight: Weight) -> bytes:
    value = laid(weight)
    return hashlib.sha256(repr(value.shape).encode() + value.astype(np.float64).tobytes()).digest()

"""Weights of two models with their sums, and the matches of such weights with how their values relate."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from embgrad.comparison.weight_values import Part, bits_of, distance_of, rounded

__all__ = ["EQUAL", "NUMBER", "Match", "Matching", "NamedArray", "Summary", "described", "kind_of", "summaries_of"]

#: The number of a layer in a name, not that of one of its parts such as "norm1".
NUMBER: Final = re.compile(r"(?<![A-Za-z\d])\d+")

#: The relative L2 up to which two weights are equal: the rounding error of storing them in single precision.
EQUAL: Final = 1e-6

#: The relative L2 up to which one weight may be another that is quantised, to as few as two bits.
QUANTISED: Final = 0.5


class NamedArray(Protocol):
    """A weight of a model or of a folder."""

    @property
    def name(self) -> str:
        """Its name in the framework's spelling."""
        ...

    @property
    def module(self) -> str:
        """The path of the module that owns it."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        ...

    @property
    def get(self) -> Callable[[], np.ndarray]:
        """A function that returns its values, float32 or float64."""
        ...

    @property
    def time(self) -> float:
        """When its module ended, as a share of the forward pass."""
        ...

    @property
    def layer(self) -> int | None:
        """The index of the layer that contains it; None outside of the layers."""
        ...


@dataclass(frozen=True, eq=False)
class Match:
    """A weight of a with its partner in b.

    Attributes:
        a: the weight's name in a.
        b: the partner's name in b.
        distance: the relative L2 of b's values against a's, in the same layout.
        transposed: whether the partner's matrix is the transpose of a's.
        order: the permutation under which b's rows or columns are a's; None for the same order.
        axis: the axis of a's matrix that is permuted.
        relation: how the values relate, as a short text: "equal", "times 8", "plus 1", "rounded to bfloat16", "with the same
            numbers in another order", "different".
        by_value: whether the values show that the two belong together; otherwise only shape and order do.
    """

    a: str
    b: str
    distance: float
    transposed: bool = False
    order: np.ndarray | None = None
    axis: int = 0
    relation: str = "equal"
    by_value: bool = True

    @property
    def as_object(self) -> str:
        """The relation as the end of a sentence such as "b has NAME …"."""
        if self.relation == "different":
            return f"with other values (relative L2 {self.distance:.1e})"
        return self.relation.removesuffix(" in b").replace("equal to", "equal to a's")

    @property
    def is_equal(self) -> bool:
        """Return whether the two hold the same numbers, in any layout."""
        return self.distance <= EQUAL


@dataclass(frozen=True, eq=False)
class Matching:
    """The weights of two models by their partners.

    Attributes:
        matches: the pairs, in a's order.
        parts: for weights of a that are fused or split in b, their rows in b's weights, by name.
        alone_a: the names of a's weights without a partner.
        alone_b: the names of b's weights without a partner.
    """

    matches: tuple[Match, ...]
    parts: Mapping[str, tuple[Part, ...]]
    alone_a: tuple[str, ...]
    alone_b: tuple[str, ...]

    @property
    def different(self) -> tuple[Match, ...]:
        """The pairs whose values differ."""
        return tuple(match for match in self.matches if not match.is_equal)


@dataclass(frozen=True, eq=False)
class Summary:
    """A weight with numbers that do not depend on the order of its entries."""

    weight: NamedArray
    number: int
    size: int
    magnitude: float
    power: float

    def distance(self, other: Summary) -> float:
        """Return the larger relative difference of the two sums."""
        pairs = ((self.magnitude, other.magnitude), (self.power, other.power))
        return max(abs(x - y) / max(abs(x), abs(y), 1e-30) for x, y in pairs)


def summaries_of(weights: Sequence[NamedArray]) -> list[Summary]:
    """Return weights with their sums, in their order."""
    summaries = []
    for number, weight in enumerate(weights):
        values = weight.get().ravel()
        magnitude = float(np.abs(values).sum(dtype=np.float64))
        summaries.append(Summary(weight, number, values.size, magnitude, float(np.vdot(values, values))))
    return summaries


def described(match: Match, mine: np.ndarray, its: np.ndarray) -> Match:
    """Return the match with a text for how rounded values relate."""
    if match.is_equal:
        return match
    for dtype in ("bfloat16", "float16"):
        for exact, coarse, whose in ((mine, its, "b"), (its, mine, "a")):
            if distance_of(rounded(exact, dtype), coarse) <= EQUAL:
                return replace(match, relation=f"rounded to {dtype} in {whose}")
    if match.distance <= QUANTISED:
        for exact, coarse, whose in ((mine, its, "b"), (its, mine, "a")):
            bits = bits_of(coarse)
            if bits is not None and bits_of(exact) is None:
                return replace(match, relation=f"rounded to {bits} bits in {whose}")
    same = mine.size == its.size and np.array_equal(np.sort(mine, axis=None), np.sort(its, axis=None))
    return replace(match, relation="with the same numbers in another order" if same else "different")


def kind_of(name: str) -> str:
    """Return a name without the numbers of layers, which is the same in each."""
    return NUMBER.sub("N", name)

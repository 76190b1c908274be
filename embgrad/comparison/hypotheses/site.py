"""Sites, stretches of two forward passes with equal inputs and different outputs, and the explanations of their differences."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from embgrad.comparison.recording import HeldWeight, Recording
from embgrad.comparison.sites import Pair, difference
from embgrad.comparison.weights import Match, Matching
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import INPUT, OUTPUT

__all__ = [
    "FAINT_MEMORY",
    "MOST_LEFT",
    "Before",
    "Changed",
    "Explanation",
    "Site",
    "arrived",
    "kept",
    "known_changes",
    "real_of",
    "remember",
    "together",
    "unset",
]

#: The key in a site's memory of whether its difference is so small that only what is known from others is tried.
FAINT_MEMORY: Final = "faint"

#: The key in a site's memory of the changes of sums at earlier sites, which later sums contain where no point stops them, and
#: the most of them that are kept.
CHANGES: Final = "changes of sums"
MOST_KNOWN: Final = 16

#: The number of floors from which a token's own difference is not rounding.
TOKEN_FLOORS: Final = 10.0

#: The largest relative L2 between a known function's value and the reference's output.
NEAR: Final = 1e-4

#: The share of a site's difference that an explanation may leave. Of what is true, weights of 8 bits leave the most in the lists
#: of tests, 0.7 %; functions that are merely alike leave more, such as tanh for a limit of -1 and 1, 8 %.
MOST_LEFT: Final = 0.01

#: The number of floors that an explanation may leave.
FLOORS: Final = 10.0

#: The largest share of a site's difference by which a function may miss the reference's output.
SHARE: Final = 0.25

#: Returns the values at a point before a site, (example, position, feature), by its name.
Values = Callable[[str], np.ndarray]


def arrived(name: str) -> str:
    """Return the name under which a pass keeps the values of a point as they are before they are changed."""
    return f"{name} as it arrives"


def unset(at: Values) -> Values:
    """Return the values at points as a computes them: an input that a pass changes is changed for its module alone."""
    return lambda name: at(arrived(name)) if name.endswith(f":{INPUT}") else at(name)


@dataclass(frozen=True, eq=False)
class Before:
    """A tensor at a point before a site.

    Attributes:
        name: the name of the point, or of the pair of points.
        values: float64, (example, position, feature), in a's order of features.
        shared: whether both models have it; otherwise only a is known to compute it on the way to the site's output.
    """

    name: str
    values: np.ndarray
    shared: bool = True


@dataclass(frozen=True)
class Explanation:
    """A cause of a difference at a site, with the output of the port that it predicts.

    Attributes:
        cause: its name, a key of `embgrad.comparison.findings.CAUSES`.
        setting: what differs, as the subject of the text, such as "epsilon".
        values: the setting's value in a and in b, as texts.
        predicted: b's output according to the hypothesis, of the shape of the site's outputs.
        compute: b's function of the values at earlier points, so that the reference can be run with it; None where it is not
            known.
        inputs: the names of the points that `compute` reads.
        sentence: the text, where it is not that the setting has these values in a and in b.
        also: the further settings that differ, if several do; they have the same predicted output.
        rivals: explanations of the same predicted output, which other sites may decide for.
        goes_on: whether this is the difference of an earlier site alone, which has the cause.
        layer: the index of the layer that it is in, where that is not the site's own; None where it is.
        change: what is added to a sum in b, by the values at earlier points; None where that is not known, or no sum is changed.
    """

    cause: str
    setting: str
    values: tuple[str, str]
    predicted: np.ndarray
    compute: Callable[[Values], np.ndarray] | None = None
    inputs: tuple[str, ...] = ()
    sentence: str = ""
    also: tuple[Explanation, ...] = ()
    rivals: tuple[Explanation, ...] = ()
    goes_on: bool = False
    layer: int | None = None
    change: Callable[[Values], np.ndarray] | None = None

    @property
    def text(self) -> str:
        """The explanation without the places where it holds."""
        return self.sentence or f"{self.setting} {self.values[0]} in a and {self.values[1]} in b"

    def behind(
        self, predicted: np.ndarray, function: Callable[[np.ndarray, Values], np.ndarray], names: Iterable[str] = ()
    ) -> Explanation:
        """Return the explanation of a site behind a function of this one's output.

        Args:
            predicted: b's output behind the function.
            function: the function, of the output here and the values at points in a pass.
            names: the names of the points that it reads.
        """
        inner = self.compute
        return replace(
            self,
            predicted=predicted,
            compute=None if inner is None else lambda at: function(inner(at), at),
            inputs=tuple(dict.fromkeys((*self.inputs, *names))),
            also=tuple(other.behind(predicted, function, names) for other in self.also),
        )


class Changed(NamedTuple):
    """A change of a sum in b, which later sums contain as well where no point stops it.

    Attributes:
        explanation: the explanation of the sum.
        values: what is added, (example, position, feature).
    """

    explanation: Explanation
    values: np.ndarray

    def read(self, at: Values) -> np.ndarray:
        """Return what is added in a pass whose values at points a function returns; the same as here where that is not known."""
        return self.values if self.explanation.change is None else self.explanation.change(at)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return () if self.explanation.change is None else self.explanation.inputs


@dataclass(frozen=True, eq=False)
class Site:
    """A stretch of both passes that ends at a pair of points, and whose outputs differ although its inputs are equal.

    Attributes:
        pair: the points at its end.
        layer: the index of the layer that contains it; None outside of the layers.
        a: a's output, float64, (example, position, feature).
        b: b's output for the same inputs, in the same order of features.
        real: the positions that count, bool, (example, position).
        ids: the batch's ids, (example, position).
        before: the tensors at the points before it, the nearest first.
        recordings: both sides.
        matching: the weights of both sides by their partners.
        floor: the relative L2 that rounding may cause here.
        settings: the settings that both models declare, which are tried first.
        pairs: all pairs of points of the check.
        memory: what hypotheses have found at other sites of the same check, to be tried first; each keeps its own keys.
    """

    pair: Pair
    layer: int | None
    a: np.ndarray
    b: np.ndarray
    real: np.ndarray
    ids: np.ndarray
    before: Sequence[Before]
    recordings: tuple[Recording, Recording]
    matching: Matching
    floor: float = 0.0
    settings: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    pairs: Sequence[Pair] = ()
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The readable name of the point at its end."""
        return self.pair.name

    @property
    def path(self) -> str:
        """The path in a of the module at whose input or output the site ends."""
        return self.recordings[0].tensors[self.pair.a].path

    @property
    def is_output(self) -> bool:
        """Return whether the site ends at the output of a module or a lookup, not at an input."""
        return self.recordings[0].tensors[self.pair.a].side != INPUT

    @cached_property
    def difference(self) -> float:
        """The relative L2 of b's output against a's at real positions."""
        return difference(self.a, self.b, self.real)

    @property
    def most_left(self) -> float:
        """The relative L2 that an explanation may leave."""
        return min(max(MOST_LEFT * self.difference, FLOORS * self.floor), 0.5 * self.difference)

    @property
    def near(self) -> float:
        """The relative L2 up to which a function's value is b's output, larger than `NEAR` where b computes in half precision."""
        return max(NEAR, min(self.floor, SHARE * self.difference))

    @property
    def is_coarse(self) -> bool:
        """Return whether rounding, as to half precision, hides more than `NEAR`."""
        return self.near > NEAR

    def text_of(self, number: float) -> str:
        """Return a text for a number that was fitted to an output, with the digits that can be known."""
        return f"{number:.3g}" if self.is_coarse else f"{number:.6g}"

    @cached_property
    def entry(self) -> Before | None:
        """The tensor at the input of the module whose output ends the site; None where there is none."""
        number = self.recordings[0].tensors[self.pair.a].number
        return self._input_of(self.path, number) if self.is_output else None

    @cached_property
    def modules(self) -> Sequence[tuple[str, Before]]:
        """The paths and inputs of the modules whose output is the site's, its own first."""
        own = [(self.path, self.entry)] if self.entry is not None else []
        tensors = self.recordings[0].tensors
        end = tensors[self.pair.a]
        others = [
            (tensor.path, before)
            for tensor in tensors.values()
            if tensor.side == OUTPUT
            and tensor.time < end.time
            and (before := self._input_of(tensor.path, tensor.number)) is not None
            and tensor.values.shape == self.a.shape
            and np.array_equal(tensor.values, end.values)
        ]
        return [*own, *others]

    def _input_of(self, path: str, number: int) -> Before | None:
        name = f"{path}:{INPUT}" if number == 0 else f"{path}#{number}:{INPUT}"
        return next((before for before in self.before if before.name == name), None)

    @property
    def held(self) -> Mapping[str, tuple[HeldWeight, HeldWeight | None, Match | None]]:
        """The weights of the module in a at the site's end, see `held_by`."""
        return self.held_by(self.path)

    def held_by(self, path: str) -> Mapping[str, tuple[HeldWeight, HeldWeight | None, Match | None]]:
        """Return the weights of a module of a, by name, with b's partner and how the two match; None where b has none."""
        return {
            weight.name: (weight, *self.partners.get(weight.name, (None, None)))
            for weight in self.recordings[0].weights
            if weight.module == path
        }

    @property
    def weights(self) -> list[HeldWeight]:
        """The weights of its layer in a."""
        return [weight for weight in self.recordings[0].weights if weight.layer == self.layer]

    @cached_property
    def partners(self) -> Mapping[str, tuple[HeldWeight, Match]]:
        """b's partners of a's weights, with how the two match, by a's names."""
        others = {weight.name: weight for weight in self.recordings[1].weights}
        unequal = {
            name: (others[part.name], Match(name, part.name, part.distance, relation=part.relation))
            for name, parts in self.matching.parts.items()
            for part in parts
            if part.relation != "equal"
        }
        return unequal | {match.a: (others[match.b], match) for match in self.matching.matches}

    def differing_by(self, path: str) -> list[tuple[HeldWeight, HeldWeight, Match]]:
        """Return the weights of a module of a that differ from their partners, with these and how the two match."""
        return [
            (weight, other, match)
            for weight, other, match in self.held_by(path).values()
            if other is not None and match is not None and not match.is_equal
        ]

    def declared(self, setting: str, *, of_a: bool = True) -> float | None:
        """Return a number that a's configuration declares, or b's; None where it declares none."""
        entry = self.recordings[0 if of_a else 1].settings.get(setting)
        is_number = entry is not None and isinstance(entry.value, (int, float)) and not isinstance(entry.value, bool)
        return float(entry.value) if entry is not None and is_number else None

    def off(self, predicted: np.ndarray, *, from_a: bool = False) -> float:
        """Return the relative L2 between a prediction and b's output, or a's, at real positions."""
        return difference(self.a if from_a else self.b, predicted, self.real)

    def suits_most_tokens(self, predicted: np.ndarray) -> bool:
        """Return whether a prediction leaves at most half of the difference of at least half of the tokens that differ or would.

        The relative L2 of all tokens may be that of one of them: trained models have entries a thousand times as large as others.
        """
        a, b, its = (self.rows(values) for values in (self.a, self.b, predicted))
        differences, left = np.linalg.norm(b - a, axis=-1), np.linalg.norm(b - its, axis=-1)
        differing = np.maximum(differences, left) > TOKEN_FLOORS * self.floor * np.linalg.norm(b, axis=-1)
        return not differing.any() or float((left <= 0.5 * differences)[differing].mean()) >= 0.5

    def real_of(self, values: np.ndarray) -> np.ndarray:
        """Return the positions of a tensor that are not padding, which may be those of another text than the site's."""
        return self.real if values.shape[:2] == self.real.shape else real_of(self.recordings[0].batch, values)

    def rows(self, values: np.ndarray) -> np.ndarray:
        """Return a tensor's vectors at real positions as float64, (token, feature)."""
        at = values[self.real] if values.shape[:2] == self.real.shape else values.reshape(-1, values.shape[-1])
        return np.asarray(at, np.float64)


def known_changes(site: Site) -> list[Changed]:
    """Return the changes of sums that were found at earlier sites, the last at the end."""
    known: list[Changed] = site.memory.setdefault(CHANGES, [])
    return known


def remember(site: Site, explanation: Explanation, change: np.ndarray) -> None:
    """Keep what is added to a sum for later sites."""
    known = known_changes(site)
    known[:] = [*known, Changed(explanation, change)][-MOST_KNOWN:]


def kept(function: Callable[[Values], np.ndarray], names: Sequence[str]) -> Callable[[Values], np.ndarray]:
    """Return a function of the values at points with these names, which is computed once for the tensors of a pass.

    What is added to a sum is read at all later sums, and contains what is added to those before.
    """
    last: list[tuple[list[np.ndarray], np.ndarray]] = []

    def read(at: Values) -> np.ndarray:
        tensors = [at(name) for name in names]
        if not last or any(known is not tensor for known, tensor in zip(last[0][0], tensors, strict=True)):
            last[:] = [(tensors, function(at))]
        return last[0][1]

    return read


def together(found: Sequence[Explanation]) -> list[Explanation]:
    """Return the first of several explanations of one site that hold at once, with the others; an empty list for none."""
    return [replace(found[0], also=tuple(found[1:]))] if found else []


def real_of(batch: TokenBatch, values: np.ndarray) -> np.ndarray:
    """Return the positions of a tensor that count, bool, (example, position)."""
    if values.shape[:2] == batch.shape:
        return batch.real
    masks = (np.asarray(extra) for name, extra in batch.extras.items() if "mask" in name)
    own = next((mask for mask in masks if mask.shape == values.shape[:2]), None)
    return np.ones(values.shape[:2], bool) if own is None else own.astype(bool)

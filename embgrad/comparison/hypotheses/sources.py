"""Tensors before a site, and parts of them, from which a hypothesis computes the site's output."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import NEAR, SHARE, Before, Explanation, Site, Values
from embgrad.model_points.points import INPUT

__all__ = [
    "Added",
    "Fused",
    "Source",
    "Term",
    "carried",
    "first_that_explains",
    "last_part",
    "most_off",
    "norms_before",
    "relative",
    "sample_of",
    "skipped_norms",
    "sources",
    "sums_of_two",
    "unit",
]

#: The number of floors within which a function reproduces an output.
FLOORS: Final = 10.0

#: The most different tensors before a site that are taken, where nothing else is said.
MOST: Final = 12

#: The number of a tensor's entries by which it is recognised, and by which functions are told apart first.
SAMPLED: Final = 64
ENTRIES: Final = 256


@dataclass(frozen=True, eq=False)
class Term:
    """A tensor before a site, which b may hold with the difference of an earlier site.

    Attributes:
        before: the tensor.
        values: the values that b sums.
        earlier: the explanation of the earlier site; None where b sums the tensor itself.
    """

    before: Before
    values: np.ndarray
    earlier: Explanation | None = None

    def read(self, at: Values) -> np.ndarray:
        """Return b's values in a pass whose values at points a function returns."""
        if self.earlier is None or self.earlier.compute is None:
            return at(self.before.name)
        return self.earlier.compute(at)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return (self.before.name,) if self.earlier is None else self.earlier.inputs


def carried(site: Site, term: Term) -> Term | None:
    """Return the term as the led model holds it, where an earlier site's difference goes on beside the point that was set."""
    for earlier, explanation in site.memory.get("explained", ()):
        if earlier.a.shape == site.a.shape and np.array_equal(earlier.a, term.values):
            return Term(term.before, earlier.b, explanation) if explanation is not None else None
    return None


@dataclass(frozen=True, eq=False)
class Source:
    """A tensor at a point before a site, its product with a weight, or some features of these.

    Attributes:
        name: the name of the pair of points.
        values: float64, (example, position, feature).
        features: the features of the point's tensor or its product, in order; None for all.
        label: what distinguishes it from other parts of the same tensor.
        matrix: the matrix that the point's tensor is multiplied with, (input, output); None for the tensor itself.
        bias: what is then added.
    """

    name: str
    values: np.ndarray
    features: np.ndarray | None = None
    label: str = ""
    matrix: np.ndarray | None = None
    bias: np.ndarray | None = None

    def read(self, at: Values) -> np.ndarray:
        """Return its values in a pass whose values at points a function returns."""
        values = at(self.name) if self.matrix is None else at(self.name) @ self.matrix
        values = values if self.bias is None else values + self.bias
        return values if self.features is None else np.asarray(values[..., self.features])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return (self.name,)

    def of_others(self, held: Mapping[str, Before]) -> Source:
        """Return the same features of other tensors, by the names of those that it reads."""
        whole = Source(held[self.name].name, held[self.name].values)
        return whole if self.features is None else whole.part(self.features, self.label)

    def part(self, features: np.ndarray, label: str = "") -> Source:
        """Return some of its features, in the order of their indices."""
        whole = features if self.features is None else self.features[features]
        return replace(self, values=self.values[..., features], features=whole, label=label)

    @property
    def text(self) -> str:
        """A short readable name, without the place of its layer."""
        if self.matrix is not None:
            return f"the product with {self.label}"
        return f"{self.label} of {last_part(self.name)}" if self.label else last_part(self.name)


@dataclass(frozen=True, eq=False)
class Fused(Source):
    """Several tensors side by side, as the output of a fused projection of b holds them.

    Attributes:
        parts: the tensors.
        order: for each feature its index among those of the tensors one after the other.
    """

    parts: tuple[Source, ...] = ()
    order: np.ndarray = field(default_factory=lambda: np.zeros(0, int))

    def of_others(self, held: Mapping[str, Before]) -> Source:
        """Return the same features of other tensors, by the names of those that it reads."""
        parts = tuple(part.of_others(held) for part in self.parts)
        values = np.concatenate([part.values for part in parts], -1)[..., self.order]
        values = values if self.features is None else values[..., self.features]
        return replace(self, name=parts[0].name, values=values, parts=parts)

    def read(self, at: Values) -> np.ndarray:
        """Return its values in a pass whose values at points a function returns."""
        values = np.concatenate([part.read(at) for part in self.parts], -1)[..., self.order]
        return values if self.features is None else np.asarray(values[..., self.features])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return tuple(part.name for part in self.parts)


@dataclass(frozen=True, eq=False)
class Added(Source):
    """The sum of two tensors, of which the second may be one vector for all positions.

    Attributes:
        parts: the tensors.
    """

    parts: tuple[Source, ...] = ()

    def read(self, at: Values) -> np.ndarray:
        """Return its values in a pass whose values at points a function returns."""
        first, second = (part.read(at) for part in self.parts)
        return np.asarray(first + second)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the points that it reads."""
        return tuple(part.name for part in self.parts)


def sums_of_two(site: Site, most: int = MOST) -> Iterator[Source]:
    """Yield the sums of two different tensors before a site that have its shape, or of one with a vector for all positions."""
    near = [source for source in sources(site, most) if source.values.shape[::2] == site.a.shape[::2]]
    for first, second in itertools.permutations(near, 2):
        is_later = near.index(first) > near.index(second) and second.values.shape == site.a.shape
        if first.values.shape == site.a.shape and second.values.shape[1] in (1, site.a.shape[1]) and not is_later:
            yield Added(f"{first.name} + {second.name}", first.values + second.values, parts=(first, second))


def sources(site: Site, most: int = MOST) -> Iterator[Source]:
    """Yield the different tensors before a site, the nearest first, at most so many."""
    seen: set[tuple[tuple[int, ...], bytes]] = set()
    for before in site.before:
        flat = before.values.reshape(-1)
        step = flat.size // SAMPLED | 1  # odd, so that it does not meet the same features of each position
        sample = (before.values.shape, np.asarray(flat[::step]).astype(np.float32).tobytes())
        if sample in seen or not np.isfinite(before.values).all():
            continue
        seen.add(sample)
        yield Source(before.name, before.values)
        if len(seen) == most:
            return


def skipped_norms(site: Site, values: np.ndarray) -> Iterator[tuple[str, Before]]:
    """Yield the paths of the norms of a that return these values, with what they are given."""
    return ((norm.name, given) for given, norm in norms_before(site) if np.array_equal(norm.values, values))


def norms_before(site: Site) -> Iterator[tuple[Before, Before]]:
    """Yield what the norms of a before a site are given, and what they return, the nearest first."""
    inputs = {before.name.removesuffix(f":{INPUT}"): before for before in site.before if before.name.endswith(INPUT)}
    for norm in site.before:
        given = inputs.get(norm.name)
        if given is not None and given.values.shape == norm.values.shape:
            held = site.held_by(norm.name).values()
            if held and all(len(weight.shape) == 1 for weight, _, _ in held):
                yield given, norm


def last_part(name: str) -> str:
    """Return the last part of the path in a point's name, which is the same in every layer."""
    path = name.removesuffix(f":{INPUT}")
    head, _, rest = path.partition("[")
    tail = head.replace("/", ".").rpartition(".")[2]
    return f"{tail}[{rest}" if rest else tail


def relative(predicted: np.ndarray, wanted: np.ndarray) -> float:
    """Return the relative L2 of a prediction; infinite where it is not finite or there is nothing to predict."""
    length = float(np.linalg.norm(wanted))
    off = float(np.linalg.norm(predicted - wanted))
    return off / length if length and np.isfinite(off) else np.inf


def unit(values: np.ndarray) -> np.ndarray:
    """Return vectors scaled to length 1."""
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-30))


def most_off(site: Site) -> float:
    """Return the relative L2 up to which a function reproduces the reference's output.

    It is smaller than the site's difference, so that the reference's function is distinguished from the port's.
    """
    return min(max(NEAR, FLOORS * site.floor), max(SHARE * site.difference, 2 * site.floor))


def first_that_explains(site: Site, found: Iterable[list[Explanation]]) -> list[Explanation]:
    """Return the first explanations of which one predicts most of the port's output; the first of all where none does.

    Several tensors may reproduce the reference's output: what is before a function, and what is behind it.
    """
    first: list[Explanation] = []
    for explanations in found:
        if any(site.off(explanation.predicted) <= SHARE * site.difference for explanation in explanations):
            return explanations
        first = first or explanations
    return first


def sample_of(site: Site, values: np.ndarray) -> np.ndarray:
    """Return a few entries of a tensor at real positions, the same of all tensors of one shape."""
    width = values.shape[-1]
    real = site.real if values.shape[:2] == site.real.shape else np.ones(values.shape[:2], bool)
    examples, positions = np.nonzero(real)
    count = len(examples) * width
    rows, features = np.divmod(np.arange(0, count, max(1, count // ENTRIES)), width)
    return np.asarray(values[examples[rows], positions[rows], features])

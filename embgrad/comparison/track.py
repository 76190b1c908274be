"""The track of two forward passes: their steps, the first that differs, and the module and the weights of the stretch there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from embgrad.comparison.bisection_records import Step, Suspect
from embgrad.comparison.examine import gradient_limit, unreached_points
from embgrad.comparison.inspection import Inspection
from embgrad.comparison.recording import FINAL, HeldWeight, Tensor, contains, ends_of
from embgrad.comparison.sites import Pair, difference
from embgrad.comparison.weights import Match
from embgrad.errors import NoGradientError, ObjectiveError
from embgrad.model_points.points import INPUT, OUTPUT
from embgrad.model_points.roles import LAYER

__all__ = ["Divergence", "Track"]

#: The name of the last step: the objective's values.
OBJECTIVE: Final = "objective"

#: The number of unit roundoffs by which a weight may differ that is equal.
WEIGHT_ROUNDOFFS: Final = 4.0


class Divergence(NamedTuple):
    """The first point that differs.

    Attributes:
        at: its index among the steps.
        before: the index of the last step, in the direction of the search, at which the models agree; None if there is none.
        is_forward: whether its value differs, and not only its gradient.
    """

    at: int
    before: int | None
    is_forward: bool


class Track:
    """The steps of two forward passes, and what lies between them.

    Args:
        inspection: what the recordings show.
        tolerance: the relative L2 up to which values and gradients agree; None for rounding errors.

    Attributes:
        a: the recording of a.
        b: that of b.
        pairs: the pairs of points, in a's order.
        points: their figures.
        names: their names, and that of the objective behind them.
        inspection: see above.
        tolerance: see above.
    """

    def __init__(self, inspection: Inspection, tolerance: float | None) -> None:
        self.inspection, self.tolerance = inspection, tolerance
        self.a, self.b = inspection.sides
        self.pairs, self.points = inspection.examined.pairs, inspection.points
        self._roles = [self._shared_role(pair) for pair in self.pairs]
        spelled = [
            role or (pair.name if pair.features_a is not None else pair.a.removesuffix("#0"))
            for role, pair in zip(self._roles, self.pairs, strict=True)
        ]
        self.names = [*spelled, OBJECTIVE]

    def _shared_role(self, pair: Pair) -> str | None:
        others = self.b.tensors[pair.b].roles
        return next((role for role in self.a.tensors[pair.a].roles if role in others), None)

    def _tensor(self, number: int) -> Tensor:
        return self.a.tensors[self.pairs[number].a]

    # The search

    def first(self) -> Divergence | None:
        """Return the first point that differs, forward, and if none does, backward; None if all agree."""
        at = next(self._differing(), None)
        if at is not None:
            return self.forward(at)
        at = next(self._differing_gradients(), None)
        if at is None:
            return None
        known = (number for number in range(at + 1, len(self.points)) if self.points[number].gradient is not None)
        return Divergence(at, next(known, len(self.points)), False)

    def forward(self, at: int) -> Divergence:
        """Return the divergence of the values at a point."""
        key = self.pairs[at].a if at < len(self.pairs) else None
        # Of the pairs of this same point of a, an earlier one counts where the models agree, as at the last layer that both have.
        before = (
            number
            for number in reversed(range(at))
            if self.pairs[number].a != key or (self.names[number] != self.names[at] and not self._is_off(number))
        )
        return Divergence(at, next(before, None), True)

    def _differing(self) -> Iterator[int]:
        """Yield the indices of the points whose values differ, and that of the objective."""
        led = self.inspection.examined.differing
        apart = self.inspection.is_apart and not led
        for number, point in enumerate(self.points):
            if point.name in led if self.tolerance is None and not apart else self._is_off(number):
                yield number
        off = self.objective()
        failed = [isinstance(side.failure, ObjectiveError) for side in (self.a, self.b)]
        if any(failed) or (off is not None and off > self._limit(-1)):
            yield len(self.points)

    def _differing_gradients(self) -> Iterator[int]:
        """Yield the indices of the points whose gradients differ, in the order of the backward pass."""
        failed = [isinstance(side.failure, NoGradientError) for side in (self.a, self.b)]
        if failed[0] != failed[1]:
            yield max((number for number, pair in enumerate(self.pairs) if pair.a != FINAL), default=0)
        if self.tolerance is None:
            index = {point.name: number for number, point in enumerate(self.points)}
            yield from (index[name] for name in self.inspection.behind)
            return
        missing = set(unreached_points(self.pairs, self.a, self.b))
        for number in reversed(range(len(self.points))):
            gradient = self.points[number].gradient
            if self.points[number].name in missing or (gradient is not None and gradient > self.tolerance):
                yield number

    def _limit(self, number: int) -> float:
        return self.inspection.limit(self.points[number]) if self.tolerance is None else self.tolerance

    def _is_off(self, number: int) -> bool:
        return self.points[number].values > self._limit(number)

    def objective(self) -> float | None:
        """Return the relative L2 of the objective's values; if terms cancel in them, against the size of the terms."""
        first, second = self.a.objective, self.b.objective
        if first is None or second is None or first.shape != second.shape:
            return None
        length = max(float(np.linalg.norm(first)), self.a.size / max(first.size, 1) ** 0.5)
        off = float(np.linalg.norm(second - first))
        return off / length if length else (float("inf") if off else 0.0)

    def steps(self, divergence: Divergence | None) -> tuple[Step, ...]:
        """Return every point that was compared, with its figures."""
        at = None if divergence is None else divergence.at
        most = gradient_limit(self.inspection.roundoff) if self.tolerance is None else self.tolerance
        missing = set(unreached_points(self.pairs, self.a, self.b))
        steps = [
            Step(
                name,
                point.values,
                point.gradient,
                number != at
                and not self._is_off(number)
                and point.name not in missing
                and (point.gradient is None or point.gradient <= most),
            )
            for number, (name, point) in enumerate(zip(self.names, self.points, strict=False))
        ]
        off = self.objective()
        if off is not None:
            steps.append(Step(OBJECTIVE, off, None, at != len(self.points) and off <= self._limit(-1)))
        return tuple(steps)

    def at_or_after(self, side: str, tensor: Tensor) -> int:
        """Return the index of the first point at or after a tensor of a side."""
        recording = self.a if side == "a" else self.b
        keys = (pair.a if side == "a" else pair.b for pair in self.pairs)
        times = [recording.tensors[key].time for key in keys]
        return next((number for number, time in enumerate(times) if time >= tensor.time), len(times) - 1)

    # Names

    def role(self, at: int, *, forward: bool) -> str:
        """Return the role of the first tensor with a role that is computed from a point, or on the way back from its gradient."""
        if at == len(self.pairs):
            return OBJECTIVE
        if self._roles[at] is None:
            numbers = range(at, len(self.pairs)) if forward else range(at, -1, -1)
            same = (
                number for number, pair in enumerate(self.pairs) if pair.a == self.pairs[at].a and self._roles[number]
            )
            behind = (number for number in numbers if self._roles[number] and not (forward and self._is_lookup(number)))
            at = next(itertools.chain(same, behind), at)
        return self.names[at]

    def after(self, divergence: Divergence) -> str | None:
        """Return the last role before the first point that differs, in the direction of the search."""
        _, before, is_forward = divergence
        if before is None:
            return None
        if before < len(self.pairs) and self.pairs[before].a == FINAL:
            return self.names[before]
        numbers = range(before, -1, -1) if is_forward else range(before, len(self.pairs))
        roles = (number for number in numbers if self._roles[number] and (is_forward or not self._is_lookup(number)))
        return self.names[next(roles, before if is_forward else len(self.pairs))]

    def _is_lookup(self, number: int) -> bool:
        return self._tensor(number).side is None

    def module(self, divergence: Divergence, suspects: Sequence[Suspect]) -> str | None:
        """Return the path in a of the smallest module that is known to contain the difference; None if there is none."""
        at, before, is_forward = divergence
        differing = {suspect.a for suspect in suspects if suspect.differs}
        owners = {weight.module for weight in self.a.weights if weight.name in differing}
        if len(owners) == 1 and None not in differing and is_forward:
            return owners.pop() or None
        if at == len(self.pairs):
            return None
        tensor = self._tensor(at)
        if not is_forward:
            return self._pulling(tensor) or (None if before is None else self._of_role(before))
        last = self._last_agreeing(at, before)
        since = -1.0 if last is None else last.time
        returning = [
            other.path
            for other in self._same(tensor, OUTPUT, since)
            if other.time < tensor.time and self._has_agreeing_input(other, last)
        ]
        if returning or (tensor.side != INPUT and tensor.key != FINAL):
            return next(iter([*returning, tensor.path])) or None
        around = (
            path
            for path in self._ends[0]
            if contains(path, tensor.path) and contains(path, "" if last is None else last.path)
        )
        return max(around, key=len, default="") or None

    def _has_agreeing_input(self, output: Tensor, last: Tensor | None) -> bool:
        """Return whether the input of a module is the last tensor that agrees, or comes before it."""
        entry = self.a.of_module(output.path, INPUT, output.number)
        if entry is None or last is None:
            return False
        return entry.time <= last.time or np.array_equal(entry.values, last.values)

    def _last_agreeing(self, at: int, before: int | None) -> Tensor | None:
        """Return the last tensor of a before a point that agrees with b's; None if there is none.

        Between two pairs, points of modules without weights count that have the same key in both models, and equal values.
        """
        since = -1.0 if before is None else self._tensor(before).time
        last = None if before is None else self._tensor(before)
        for tensor in self.a.tensors.values():
            other = self.b.tensors.get(tensor.key)
            if (
                other is None
                or not since < tensor.time < self._tensor(at).time
                or tensor.values.shape != other.values.shape
            ):
                continue
            if difference(tensor.values, other.values, self.a.batch.real) <= self._limit(at):
                last = tensor
        return last

    def _same(self, tensor: Tensor, side: str, since: float) -> Iterator[Tensor]:
        """Yield the unpaired points of a from a time on that hold the values of a tensor."""
        excluded = {FINAL, tensor.key, *(pair.a for pair in self.pairs)}
        for other in self.a.tensors.values():
            is_candidate = other.side == side and other.time >= since and other.key not in excluded
            if is_candidate and np.array_equal(other.values, tensor.values):
                yield other

    def _pulling(self, tensor: Tensor) -> str | None:
        """Return the module that takes a tensor and pulls a gradient back to it in another way; None if there is none.

        A module that contains another one with an equal gradient at the same tensor is not known to be it.
        """
        agreeing = set()
        for pair in self.pairs:
            first, second = self.a.tensors[pair.a], self.b.tensors[pair.b]
            if first.side != INPUT or not np.array_equal(first.values, tensor.values):
                continue
            gradients = first.gradient, second.gradient  # by this module's use of the tensor alone
            if gradients[0] is not None and gradients[1] is not None:
                off = difference(pair.in_a(gradients[0]), pair.in_b(gradients[1]), self.a.batch.real)
                if off > (gradient_limit(self.inspection.roundoff) if self.tolerance is None else self.tolerance):
                    return first.path
            agreeing.add(first.path)
        taking = [other.path for other in self._same(tensor, INPUT, tensor.time)]
        return next((path for path in reversed(taking) if not any(contains(path, inner) for inner in agreeing)), None)

    def _of_role(self, number: int) -> str | None:
        """Return the path of the layer whose output is the first one with a role at or after a point; None behind the layers."""
        roles = (other for other in range(number, len(self.pairs)) if (self._roles[other] or "").startswith(LAYER))
        return next((self._tensor(other).path for other in roles), None)

    # Weights

    @cached_property
    def _ends(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """When each module of a, and of b, ended first."""
        a, b = (
            {**(ends_of(side.live.points.values()) if side.live else {}), **ends_of(side.tensors.values())}
            for side in (self.a, self.b)  # all points of a model, and those of each layer of a loop
        )
        return a, b

    def suspects(self, divergence: Divergence) -> tuple[Suspect, ...]:
        """Return the weights of the modules that end in the stretch which differs; those that differ come first."""
        at, before, _ = divergence
        steps = (-1 if before is None else before), at
        start, end = min(steps), max(steps)
        reading = self._tensor(at).path if at < len(self.pairs) and self._is_lookup(at) else None
        tables = [weight for weight in self.a.weights if weight.module == reading]
        suspects = [self._suspect(weight) for weight in tables or self._between(0, start, end)]
        alone = set(self.inspection.matching.alone_b)
        suspects += [
            Suspect(None, weight.name, "only in b", float("inf"))
            for weight in self._between(1, start, end)
            if weight.name in alone
        ]
        if not any(suspect.differs for suspect in suspects):  # swapped matrices differ where their products meet
            after = self.after(divergence)
            since = self.names.index(after) if after is not None else -1
            around = [self._suspect(weight) for weight in self._between(0, since, end)]
            suspects += [suspect for suspect in around if suspect.relation.startswith("swapped")]
        return tuple(sorted(suspects, key=lambda suspect: (not suspect.differs, -suspect.relative_l2)))

    @cached_property
    def _partners(self) -> Mapping[str, Match]:
        """The pairs of weights, by a's name."""
        return {match.a: match for match in self.inspection.matching.matches}

    def _between(self, side: int, start: int, end: int) -> Iterator[HeldWeight]:
        recording, ends = (self.a, self.b)[side], self._ends[side]

        def time(number: int) -> float:
            if number < 0:
                return -1.0
            if number == len(self.pairs):
                return float("inf")
            pair = self.pairs[number]
            return recording.tensors[(pair.a, pair.b)[side]].time

        low, high = time(start), time(end)
        for weight in recording.weights:
            if low < ends.get(weight.module, float("inf")) <= high:
                yield weight

    def _suspect(self, weight: HeldWeight) -> Suspect:
        match = self._partners.get(weight.name)
        parts = self.inspection.matching.parts.get(weight.name)
        if parts:
            return Suspect(weight.name, parts[0].name, "equal", 0.0)
        if match is None:
            return Suspect(weight.name, None, "only in a", float("inf"))
        relation = match.relation
        if relation == "equal" and match.distance > WEIGHT_ROUNDOFFS * self.inspection.roundoff:
            relation = "different"
        if relation == "different" and (held := self._held(match.b)) is not None:
            relation = f"equal to {held}"
        if relation == "equal" and match.transposed and self._twins.get(match.a) == match.b:
            relation = "transposed"
        if relation == "equal" and (other := self._swapped_with(match)) is not None:
            relation = f"swapped with {other}"
        return Suspect(match.a, match.b, relation, match.distance)

    def _held(self, name: str) -> str | None:
        """Return the weight of a whose values a weight of b holds; None if there is none."""
        values = next(weight.get() for weight in self.b.weights if weight.name == name)
        alike = (weight for weight in self.a.weights if weight.shape == values.shape)
        return next((weight.name for weight in alike if np.array_equal(weight.get(), values)), None)

    def _swapped_with(self, match: Match) -> str | None:
        """Return the weight of a whose place in b a weight has taken, and the other way round; None if there is none."""
        at, other = self._twins.get(match.a), next((a for a, b in self._twins.items() if b == match.b), match.a)
        back = self._partners.get(other)
        return other if other != match.a and back is not None and back.b == at else None

    @cached_property
    def _twins(self) -> Mapping[str, str]:
        """The weight of b at the same place as each of a, by name, if the two are copies of one model; otherwise empty."""
        sides = self.a.weights, self.b.weights
        shapes = [[weight.shape for weight in side] for side in sides]
        if not self._same_framework or shapes[0] != shapes[1]:
            return {}
        return {first.name: second.name for first, second in zip(*sides, strict=True)}

    @property
    def _same_framework(self) -> bool:
        a, b = (side.live.bound.backend.name if side.live else side.label for side in (self.a, self.b))
        return a == b

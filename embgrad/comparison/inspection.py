"""The inspection of two recordings, which `check_port` and `bisect` share: pairs, sites that differ, causes, and figures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from embgrad.comparison.causes import causes_of
from embgrad.comparison.compensation import are_compensated
from embgrad.comparison.examine import (
    Examination,
    as_stored,
    differing_sites,
    examine,
    examine_gradients,
    layers_of,
    permuted_before,
    without_sites,
)
from embgrad.comparison.floor import accumulated_floors
from embgrad.comparison.hypotheses.combination import moved_terms
from embgrad.comparison.hypotheses.explain import EXPLAINING, HYPOTHESES, explain
from embgrad.comparison.hypotheses.site import FAINT_MEMORY, Explanation, Site
from embgrad.comparison.hypotheses.turned import moved_positions
from embgrad.comparison.recording import FINAL, Recording
from embgrad.comparison.sites import Pair, difference, pair_points
from embgrad.comparison.weight_inputs import with_exchanged_in_place
from embgrad.comparison.weights import Matching, kind_of, match_weights
from embgrad.errors import EmbgradError
from embgrad.results.port_records import Cause, PortPoint

__all__ = ["Clock", "Inspection", "explain_sites", "faint_sites", "inspect_recordings"]

#: The relative L2 up to which the outputs of two models show that one is a port of the other, though no point inside does.
ROUGHLY: Final = 1e-3

#: The most kinds of points that a text names.
MOST_NAMED: Final = 4

#: The number of floors beyond which a point differs although every part before it agrees by itself.
MOST_APART: Final = 100.0

#: The number of floors beyond which a tensor that agrees may show a cause that was found elsewhere, and the most such tensors.
FAINT: Final = 0.75
MOST_FAINT: Final = 400


@dataclass
class Clock:
    """The time that each step takes, in seconds.

    Attributes:
        seconds: the time, by step.
        report: called before each step.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    report: Callable[[], Any] = lambda: None

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Measure a step."""
        self.report()
        start = time.perf_counter()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, eq=False)
class Inspection:
    """The difference between two models, as two recordings show it.

    Attributes:
        sides: both recordings, a's first.
        matching: the weights by their partners.
        examined: the pass of one side that was led by the other, with its sites.
        explained: the sites, with their explanations.
        causes: the causes, those with the largest effect first.
        behind: the names of the points whose gradients differ although all values agree, in the order of the backward pass.
        points: the figures at each pair of points, in a's order.
        roundoff: the unit roundoff of the computation.
        made_up: the differences for which what follows makes up, as texts.
    """

    sides: tuple[Recording, Recording]
    matching: Matching
    examined: Examination
    explained: Sequence[tuple[Site, Explanation | None]]
    causes: tuple[Cause, ...]
    behind: Sequence[str]
    points: tuple[PortPoint, ...]
    roundoff: float
    made_up: Sequence[str] = ()

    @property
    def found(self) -> list[tuple[Site, Explanation]]:
        """The sites that are explained."""
        return [(site, explanation) for site, explanation in self.explained if explanation is not None]

    def limit(self, point: PortPoint) -> float:
        """Return the relative L2 up to which values agree at a point when each model runs by itself."""
        return MOST_APART * max(point.floor, self.roundoff)

    @property
    def is_apart(self) -> bool:
        """Return whether the last points differ when each model runs by itself."""
        return self.points[-1].values > self.limit(self.points[-1])


def inspect_recordings(
    sides: tuple[Recording, Recording], roundoff: float, clock: Clock, *, only_first: bool = False
) -> Inspection:
    """Return what two recordings show.

    Args:
        sides: both recordings, a's first.
        roundoff: the unit roundoff of the computation.
        clock: measures the steps.
        only_first: whether the first site alone is explained, and one pair of points is enough.

    Raises:
        EmbgradError: the two models have nothing in common that could be compared.
    """
    sides = a, b = _in_order(sides)
    with clock.of("weights"):
        matching = with_exchanged_in_place(match_weights(a.weights, b.weights), a, b)
        pairs = pair_points(a, b, matching)
    if len(pairs) < (1 if only_first else 2) and not _agree_roughly(pairs, a, b):
        raise EmbgradError(_nothing_in_common(a, b, matching))
    with np.errstate(all="ignore"):  # what is not finite counts as an infinite difference
        examined, explained = _explained(pairs, sides, matching, roundoff, clock, only_first=only_first)
        made_up, is_same = [], False
        if not only_first:
            with clock.of("led"):
                is_same = are_compensated(examined.pairs, examined.differing, examined.led.follower, sides)
        if is_same:
            made_up = [cause.text for cause in causes_of([(it, why) for it, why in explained if why is not None])]
            examined, explained = without_sites(examined, sides, [it.name for it, why in explained if why is None]), []
        made_up += _different_tensors(examined.compensated)
    with clock.of("gradients"):
        examined, behind = examine_gradients(examined, sides, roundoff)
    with clock.of("floor"):
        accumulated = accumulated_floors(examined.pairs, a, roundoff)
    with clock.of("causes"):
        found = [(site, explanation) for site, explanation in explained if explanation is not None]
        explanations = [] if only_first else [explanation for _, explanation in found]
        faint = faint_sites(examined, sides, matching, explanations)
        causes = causes_of([*found, *faint])
    points = tuple(_points(examined, a, b, accumulated, behind))
    return Inspection(sides, matching, examined, explained, causes, behind, points, roundoff, made_up)


def _different_tensors(names: Sequence[str]) -> list[str]:
    """Return a text for the points at which the models hold different tensors; none where there are none."""
    kinds = list(dict.fromkeys(kind_of(name) for name in names))
    more = f" and {len(kinds) - MOST_NAMED} more" if len(kinds) > MOST_NAMED else ""
    return [f"the models hold different tensors at {', '.join(kinds[:MOST_NAMED])}{more}"] if kinds else []


def _agree_roughly(pairs: Sequence[Pair], a: Recording, b: Recording) -> bool:
    """Return whether the outputs, which are all that two models have in common, hold nearly equal values."""
    tensors = [(pair.in_a(a.tensors[pair.a].values), pair.in_b(b.tensors[pair.b].values)) for pair in pairs]
    is_output = any(FINAL in (pair.a, pair.b) for pair in pairs)
    return is_output and all(difference(mine, its, a.batch.real) <= ROUGHLY for mine, its in tensors)


def _in_order(sides: tuple[Recording, Recording]) -> tuple[Recording, Recording]:
    """Return the recordings; of models whose outputs differ those in the batch's order, also where a model looks up other ids.

    Which position is which is not known of such a model where its output is right.
    """
    first, second = (side.tensors.get(FINAL) for side in sides)
    if first is None or second is None or first.values.shape != second.values.shape:
        return sides
    if difference(first.values, second.values, sides[0].batch.real) <= ROUGHLY:
        return sides
    a, b = (side if side.live is None else side.live.record_in_order() or side for side in sides)
    return a, b


def _nothing_in_common(a: Recording, b: Recording, matching: Matching) -> str:
    sizes = [
        f"{len(side.weights)} weights, {sum(int(np.prod(weight.shape)) for weight in side.weights)} numbers"
        for side in (a, b)
    ]
    return (
        f"the two models have nothing in common that can be compared: a is {a.label} with {sizes[0]}, b is {b.label} with "
        f"{sizes[1]}, and {len(matching.matches)} weights of a have a partner in b. Pass a port with the reference's weights"
    )


def _explained(
    pairs: Sequence[Pair],
    recordings: tuple[Recording, Recording],
    matching: Matching,
    roundoff: float,
    clock: Clock,
    *,
    only_first: bool,
) -> tuple[Examination, list[tuple[Site, Explanation | None]]]:
    """Return the sites at which two models differ, with their explanations.

    Where a site is unexplained, and a weight before it has its rows in another order, the order may be the fault and not a
    choice: the examination with the features in the order in which b holds them counts if it leaves fewer unexplained.
    """
    with clock.of("led"):
        examined = examine(pairs, recordings, matching, roundoff)
    with clock.of("causes"):
        explained = explain_sites(examined, only_first=only_first)
    suspects = permuted_before(examined, [site for site, explanation in explained if explanation is None])
    if not suspects:
        return examined, explained
    with clock.of("led"):
        again = examine(as_stored(pairs, suspects), recordings, matching, roundoff)
    with clock.of("causes"):
        explained_again = explain_sites(again, only_first=only_first)
    left, left_again = (sum(explanation is None for _, explanation in both) for both in (explained, explained_again))
    return (again, explained_again) if left_again < left else (examined, explained)


def _points(
    examined: Examination, a: Recording, b: Recording, accumulated: Sequence[float], behind: Sequence[str]
) -> Iterator[PortPoint]:
    layer_of, led, real = layers_of(a), examined.led, a.batch.real
    differing = {*examined.differing, *behind}
    for number, pair in enumerate(examined.pairs):
        first, second = a.tensors[pair.a], b.tensors[pair.b]
        gradients = [first.whole_gradient, second.whole_gradient]
        own = pair.in_a(first.values) if led.follower == "b" else pair.in_b(second.values)
        own_gradient = gradients[0] if led.follower == "b" else gradients[1]
        yield PortPoint(
            name=pair.name,
            port_name=pair.b,
            layer=layer_of(first.time),
            values=difference(pair.in_a(first.values), pair.in_b(second.values), real),
            gradient=None
            if gradients[0] is None or gradients[1] is None
            else difference(pair.in_a(gradients[0]), pair.in_b(gradients[1]), real),
            floor=accumulated[number],
            local=difference(own, led.values[number], real) if number in led.values else None,
            local_gradient=None
            if number not in led.gradients or own_gradient is None
            else difference(
                pair.in_a(own_gradient) if led.follower == "b" else pair.in_b(own_gradient), led.gradients[number], real
            ),
            agrees=pair.name not in differing,
        )


def explain_sites(examination: Examination, *, only_first: bool = False) -> list[tuple[Site, Explanation | None]]:
    """Return each site, or the first alone, with its explanation, or None."""
    explained: list[tuple[Site, Explanation | None]] = []
    differing = {site.name for site in examination.sites}
    for site in examination.sites[:1] if only_first else examination.sites:
        site.memory.update(explained=explained, differing=differing)
        is_drawn = site.name in examination.random
        explained.append((site, _drawn(site) if is_drawn else _searched_once(site, explained)))
    return moved_positions(moved_terms(explained))


def _searched_once(site: Site, explained: Sequence[tuple[Site, Explanation | None]]) -> Explanation | None:
    """Return the explanation of a site; None without a search where an earlier site that ends as it does has none."""
    if any(it is None and _are_alike(site, other) for other, it in explained):
        return None
    return explain(site)


def _are_alike(first: Site, second: Site) -> bool:
    """Return whether two sites end with the same tensors, as where several modules read one."""
    return np.array_equal(first.a, second.a) and np.array_equal(first.b, second.b)


def _drawn(site: Site) -> Explanation:
    """Return the explanation of a site at which a model draws random numbers."""
    sentence = "b draws random numbers in evaluation mode, for example by dropout that was left on"
    return Explanation("dropout", "b draws", ("nothing", "random numbers"), site.b, sentence=sentence)


def faint_sites(
    examined: Examination, recordings: tuple[Recording, Recording], matching: Matching, found: Sequence[Explanation]
) -> list[tuple[Site, Explanation]]:
    """Return the sites whose difference is near the floor, and that an explanation found elsewhere explains as well."""
    if not found:
        return []
    known = {(explanation.cause, explanation.setting, explanation.values) for explanation in found}
    clear = {site.name for site in examined.sites}
    memory: dict[str, Any] = {FAINT_MEMORY: True}
    for site in examined.sites[:1]:
        memory |= site.memory
    tested = [hypothesis for hypothesis in HYPOTHESES if hypothesis in memory.get(EXPLAINING, ())]
    sites = differing_sites(examined.pairs, recordings, examined.led, examined.floors, matching, FAINT, memory)
    explained = [(site, explain(site, tested)) for site in sites[:MOST_FAINT] if site.name not in clear]
    return [
        (site, explanation)
        for site, explanation in explained
        if explanation is not None and (explanation.cause, explanation.setting, explanation.values) in known
    ]

"""The check of a port: whether a model computes what another one computes, and if not, at which points and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.keywords import explain_arguments
from embgrad.comparison.causes import causes_of, share_explained
from embgrad.comparison.floor import ROUNDOFFS, accumulated_floors, local_floors, name_of_roundoff, roundoff_for
from embgrad.comparison.hypotheses.explain import explain
from embgrad.comparison.hypotheses.site import Before, Explanation, Site
from embgrad.comparison.recording import LiveSide, Recording
from embgrad.comparison.repair import repair_pairs
from embgrad.comparison.report import PortPoint, PortReport
from embgrad.comparison.settings import differing_settings
from embgrad.comparison.sites import Led, Pair, can_be_led, difference, lead, name_of, pair_points
from embgrad.comparison.weights import Matching, match_weights
from embgrad.errors import BatchError, EmbgradError, brief, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of
from embgrad.toolkit.signature import expect_callable

__all__ = ["check_port"]

#: The number of floors beyond which a tensor differs.
BEYOND: Final = 8.0

#: The number of floors beyond which a tensor that agrees may show a cause that was found elsewhere, and the most such tensors.
FAINT: Final = 0.75
MOST_FAINT: Final = 400

#: The number of times that pairs of points are repaired, and the relative L2 from which a pair is looked at.
MOST_REPAIRS: Final = 3
REPAIRED: Final = 1e-4

#: The number of tensors before a site among which its inputs are looked for.
NEAR: Final = 8

#: The most tensors before a site that hypotheses are given.
MOST_BEFORE: Final = 40


@explain_arguments
def check_port(
    reference: Any,
    port: Any,
    texts: Any,
    objective: Any = None,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | tuple[Call | None, Call | None] | None = None,
    floor: str | None = None,
) -> PortReport:
    """Check whether a model is a right port of another one, of the same framework or of another, and find why not.

    Both models run once, and their points are paired: by roles, and by modules whose weights have equal values, whatever their
    names. Then the port runs again with the reference's values put in at every paired point, so that each part of it computes
    from the same inputs as the reference's: the parts whose outputs differ are at fault, each by itself. Known functions are
    fitted to their inputs and outputs in both models; the settings that differ are the causes.

    Args:
        reference: the model to measure against, as in `gradients`.
        port: the model that is checked.
        texts: the texts or the batch, as in `gradients`; so are `tokenizer` and `max_length`. A few texts of different lengths,
            with at least a dozen tokens, show most.
        objective: as in `gradients`, to compare gradients too; None to compare values alone.
        tokenizer: the tokenizer of both models, or a pair of tokenizers, whose ids must be equal.
        max_length: as in `gradients`.
        call: a function that calls the models, as in `gradients`; a pair if the two are called in different ways.
        floor: the dtype whose rounding errors count as agreement: "float64", "float32", "tfloat32", "float16" or "bfloat16".
            None for double precision if both compute in it, otherwise single precision.

    Returns:
        A PortReport. Its `agrees` is True if the port computes the same up to rounding.

    Raises:
        BackendError: no backend takes a model.
        BatchError: the batch is malformed, or the two tokenizers return different ids.
        EmbgradError: the two models have nothing in common that could be compared.
    """
    if floor is not None and floor not in ROUNDOFFS:
        raise EmbgradError(f"floor is {brief(floor)}: expected one of {quote(ROUNDOFFS)}, or None")
    calls = call if isinstance(call, tuple) else (call, call)
    for one in calls:
        expect_callable(one)
    clock = _Clock()
    batch = _batch(texts, tokenizer, max_length, reference)
    with clock.of("reference"):
        a = LiveSide(reference, batch, objective, calls[0]).record()
    with clock.of("port"):
        b = LiveSide(port, batch, objective, calls[1]).record()
    with clock.of("weights"):
        matching = match_weights(a.weights, b.weights)
        pairs = pair_points(a, b, matching)
    _expect_pairs(a, b, matching, pairs)
    roundoff = roundoff_for(a, b, floor)
    with clock.of("led"):
        examined = _examine(pairs, (a, b), matching, roundoff)
    with clock.of("floor"):
        accumulated = accumulated_floors(pairs, a, roundoff)
    with clock.of("causes"):
        explained = [(site, explain(site)) for site in examined.sites]
    suspects = _permuted_before(examined, [site for site, explanation in explained if explanation is None])
    if suspects:
        with clock.of("led"):
            again = _examine(_as_stored(pairs, suspects), (a, b), matching, roundoff)
        if len(again.sites) < len(examined.sites):
            examined = again
            explained = [(site, explain(site)) for site in examined.sites]
    sites = examined.sites
    with clock.of("causes"):
        faint = _faint(
            examined, (a, b), matching, [explanation for _, explanation in explained if explanation is not None]
        )
    with clock.of("share"):
        found = [(site, explanation) for site, explanation in explained if explanation is not None]
        share = share_explained(examined.pairs, a, b, found)
    points = tuple(_points(examined, a, b, accumulated))
    causes = causes_of([*found, *faint])
    settings = differing_settings(a.settings, b.settings, causes, all_explained=len(found) == len(sites))
    return PortReport(
        agrees=not sites,
        first=sites[0].name if sites else None,
        causes=causes,
        unexplained=tuple(site.name for site, explanation in explained if explanation is None),
        settings=settings,
        weights=matching,
        points=points,
        explained=share,
        labels=(a.label, b.label),
        floor=floor or name_of_roundoff(roundoff),
        notes=tuple(f"{name}: {side.failure}" for name, side in (("a", a), ("b", b)) if side.failure),
        seconds=clock.seconds,
    )


@dataclass(frozen=True, eq=False)
class _Examined:
    """The pass of one side that was led by the other, and the sites at which the two differ.

    Attributes:
        pairs: the pairs of points, a's first.
        led: the pass.
        floors: by pair the relative L2 that rounding may cause there.
        sites: the sites, in a's order.
    """

    pairs: Sequence[Pair]
    led: Led
    floors: Sequence[float]
    sites: Sequence[Site]


def _examine(
    pairs: Sequence[Pair], recordings: tuple[Recording, Recording], matching: Matching, roundoff: float
) -> _Examined:
    """Return the sites at which two models differ, from a pass of one that is led by the other."""
    a, b = recordings
    leader, follower, turned = (a, b, pairs) if can_be_led(b) else (b, a, [pair.reversed for pair in pairs])
    for _ in range(MOST_REPAIRS):
        led = lead(turned, leader, follower, "b" if leader is a else "a")
        differing = [
            number
            for number, arrived in led.values.items()
            if difference(turned[number].in_a(leader.tensors[turned[number].a].values), arrived, a.batch.real)
            > REPAIRED
        ]
        repaired = repair_pairs(turned, differing, led.values, leader, follower)
        if repaired is None:
            break
        turned = repaired
    floors = local_floors(turned, leader, follower, led, roundoff)
    pairs = turned if leader is a else [pair.reversed for pair in turned]
    return _Examined(pairs, led, floors, _differing_sites(pairs, recordings, led, floors, matching))


def _faint(
    examined: _Examined, recordings: tuple[Recording, Recording], matching: Matching, found: Sequence[Explanation]
) -> list[tuple[Site, Explanation]]:
    """Return the sites whose difference is near the floor, and that an explanation found elsewhere explains as well."""
    if not found:
        return []
    known = {(explanation.cause, explanation.setting, explanation.values) for explanation in found}
    causes = {explanation.cause for explanation in found}
    clear = {site.name for site in examined.sites}
    sites = _differing_sites(examined.pairs, recordings, examined.led, examined.floors, matching, beyond=FAINT)
    explained = [(site, explain(site, causes)) for site in sites[:MOST_FAINT] if site.name not in clear]
    return [
        (site, explanation)
        for site, explanation in explained
        if explanation is not None and (explanation.cause, explanation.setting, explanation.values) in known
    ]


def _permuted_before(examined: _Examined, sites: Sequence[Site]) -> set[str]:
    """Return the names of pairs shortly before unexplained sites whose features b holds in another order than a."""
    near = {before.name for site in sites for before in site.before[:NEAR]}
    return {
        pair.name
        for pair in examined.pairs
        if pair.name in near and pair.features_a is None and pair.features_b is not None
    }


def _as_stored(pairs: Sequence[Pair], names: set[str]) -> list[Pair]:
    """Return the pairs; those with these names with b's features in the order in which b holds them."""
    return [replace(pair, features_b=None) if pair.name in names else pair for pair in pairs]


@dataclass
class _Clock:
    """The time that each step takes, in seconds."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def of(self, step: str) -> Iterator[None]:
        """Measure a step."""
        start = time.perf_counter()
        yield
        self.seconds[step] = self.seconds.get(step, 0.0) + time.perf_counter() - start


def _batch(texts: Any, tokenizer: Any, max_length: int | None, model: Any) -> TokenBatch:
    if not isinstance(tokenizer, tuple):
        return batch_of(texts, tokenizer, max_length, model)
    if len(tokenizer) != 2:
        raise BatchError(f"tokenizer is a tuple of {len(tokenizer)}: expected a tokenizer, or one for a and one for b")
    first, second = (batch_of(texts, own, max_length, model) for own in tokenizer)
    if first.ids.shape != second.ids.shape or not np.array_equal(first.ids, second.ids):
        raise BatchError(_first_other_token(first, second))
    return first


def _first_other_token(a: TokenBatch, b: TokenBatch) -> str:
    """Return the message about two batches of the same texts with different ids."""
    for number, (first, second) in enumerate(zip(a.ids, b.ids, strict=True)):
        common = min(len(first), len(second))
        differing = np.flatnonzero(first[:common] != second[:common])
        if differing.size or len(first) != len(second):
            at = int(differing[0]) if differing.size else common
            shown = [f"{side[at]}" if at < len(side) else "nothing" for side in (first, second)]
            return (
                f"the tokenizers differ at text {number}, token {at}: a has the id {shown[0]}, and b {shown[1]}. Pass one "
                "tokenizer, or a batch of ids that both models take"
            )
    raise AssertionError("the ids differ")


def _expect_pairs(a: Recording, b: Recording, matching: Matching, pairs: Sequence[Pair]) -> None:
    if len(pairs) > 1:
        return
    sizes = [
        f"{len(side.weights)} weights, {sum(int(np.prod(weight.shape)) for weight in side.weights)} numbers"
        for side in (a, b)
    ]
    raise EmbgradError(
        f"the two models have nothing in common that can be compared: a is {a.label} with {sizes[0]}, b is {b.label} with "
        f"{sizes[1]}, and {len(matching.matches)} weights of a have a partner in b. Pass a port with the reference's weights"
    )


def _differing_sites(
    pairs: Sequence[Pair],
    recordings: tuple[Recording, Recording],
    led: Led,
    floors: Sequence[float],
    matching: Matching,
    beyond: float = BEYOND,
) -> list[Site]:
    """Return the sites at which the led model's output differs from the other's by so many floors, in a's order."""
    a, b = recordings
    layer_of = _layers(a)
    sites = []
    memory: dict[str, Any] = {}
    first, second = ({name: held.value for name, held in side.settings.items()} for side in recordings)
    settings = first, second
    for number, pair in enumerate(pairs):
        if number not in led.values:
            continue
        values_a, values_b = pair.in_a(a.tensors[pair.a].values), led.values[number]
        if led.follower == "a":
            values_a, values_b = led.values[number], pair.in_b(b.tensors[pair.b].values)
        if difference(values_a, values_b, a.batch.real) <= beyond * floors[number]:
            continue
        sites.append(
            Site(
                pair,
                layer_of(a.tensors[pair.a].time),
                np.asarray(values_a, np.float64),
                np.asarray(values_b, np.float64),
                a.batch.real,
                a.batch.ids,
                _before(pairs[:number], recordings, led, pair, values_a),
                recordings,
                matching,
                floors[number],
                settings,
                memory,
            )
        )
    return sites


def _before(
    pairs: Sequence[Pair], recordings: tuple[Recording, Recording], led: Led, end: Pair, value: np.ndarray
) -> list[Before]:
    """Return the tensors at the points before a site, the nearest first.

    Lookups are shared as well as pairs: they depend on the batch alone. What a computes on the way to the site's output is added,
    where it is not that output itself.

    Args:
        pairs: the pairs before the site.
        recordings: a and b.
        led: the led pass.
        end: the pair at which the site ends.
        value: the reference's output.
    """
    a, b = recordings
    if led.follower == "a":
        found = [Before(pair.name, np.asarray(pair.in_b(b.tensors[pair.b].values), np.float64)) for pair in pairs]
        return found[::-1][:MOST_BEFORE]
    names = {pair.a: pair for pair in pairs}
    entries: list[tuple[float, Before]] = [
        (pair.time, Before(pair.name, np.asarray(pair.in_a(a.tensors[pair.a].values), np.float64)))
        for pair in pairs[-MOST_BEFORE:]
    ]
    start = entries[0][0] if entries else 0.0
    for tensor in a.tensors.values():
        near = start <= tensor.time < a.tensors[end.a].time
        if tensor.key not in names and (near or tensor.side is None) and not _equal(tensor.values, value):
            values = np.asarray(tensor.values, np.float64)
            entries.append((tensor.time, Before(name_of(tensor), values, tensor.side is None)))
    entries.sort(key=lambda entry: -entry[0])
    return [before for _, before in entries]


def _equal(first: np.ndarray, second: np.ndarray) -> bool:
    return first.shape == second.shape and np.array_equal(first, second)


def _layers(recording: Recording) -> Callable[[float], int | None]:
    """Return a function that returns the layer in which a time lies."""
    spans: dict[int, tuple[float, float]] = {}
    for tensor in recording.tensors.values():
        for role in tensor.roles:
            number = role.removeprefix("layer.")
            if number != role and number.isdigit():
                entry = recording.of_module(tensor.path, "input", tensor.number)
                before = spans.get(int(number) - 1, (0.0, float("inf")))[1]
                spans[int(number)] = (entry.time if entry is not None else before, tensor.time)
    return lambda at: next((number for number, (start, end) in spans.items() if start <= at <= end), None)


def _points(examined: _Examined, a: Recording, b: Recording, accumulated: Sequence[float]) -> Iterator[PortPoint]:
    layer_of, led, real = _layers(a), examined.led, a.batch.real
    differing = {site.name for site in examined.sites}
    for number, pair in enumerate(examined.pairs):
        first, second = a.tensors[pair.a], b.tensors[pair.b]
        gradients = [first.gradient, second.gradient]
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

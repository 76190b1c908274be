"""Bisection of two models: the call that finds the point at which they diverge, forward or backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.keywords import explain_arguments
from embgrad.common.progress import reporter
from embgrad.common.tolerance import HALVES, check_tolerance, coarsest, unit_roundoff
from embgrad.common.tracebacks import errors_of_model
from embgrad.comparison.bisection_records import Bisection, Suspect
from embgrad.comparison.causes import causes_of
from embgrad.comparison.floor import roundoff_for
from embgrad.comparison.inspection import Clock, explain_sites, inspect_recordings
from embgrad.comparison.live_side import LiveSide
from embgrad.comparison.outputs import with_common_output
from embgrad.comparison.recording import Recording, Running, Tensor
from embgrad.comparison.sites import count_layers, difference
from embgrad.comparison.track import Divergence, Track
from embgrad.errors import ObjectiveError
from embgrad.inputs.conventions import batch_of
from embgrad.results.port_records import Cause
from embgrad.toolkit.signature import expect_callable

__all__ = ["bisect"]

#: The number of passes that are reported: one of each model, those that are led, one for the floors, another of each model.
PASSES: Final = 8

#: The most weights that a text names.
MOST_NAMED: Final = 4


@explain_arguments
def bisect(
    model_a: Any,
    model_b: Any,
    batch: Any,
    objective: Any,
    *,
    tokenizer: Any = None,
    max_length: int | None = None,
    call_a: Call | None = None,
    call_b: Call | None = None,
    tolerance: float | None = None,
    progress: Any = None,
) -> Bisection:
    """Find where two models diverge, of one framework or of two: values forward, then gradients backward, point by point.

    `bisect` says where two models first diverge, by more than a tolerance of yours; `check_port` says whether one is a right port
    of the other, and why not. Both pair the points by roles, and by modules whose weights have equal values. Both models run in
    evaluation mode, and each once more to see whether it agrees with itself. The models are restored afterwards.

    Args:
        model_a: the model to measure against, as in `gradients`.
        model_b: the model that is measured.
        batch: as in `gradients`; so are `tokenizer` and `max_length`.
        objective: as in `gradients`; a pair of functions if functions of native outputs differ between the frameworks.
        call_a: a function that calls `model_a`, as `call` in `gradients`.
        call_b: a function that calls `model_b`, as `call` in `gradients`.
        tolerance: the relative L2 up to which values, and gradients, agree when each model runs by itself. None for rounding
            errors: the first point is then the first one that b computes in another way than a from equal inputs.
        progress: True for a bar on the terminal, or a function that takes the number of passes done and the number of all passes.

    Returns:
        A Bisection. Its `agrees` is True if no point differs.

    Raises:
        BackendError: no backend takes a model.
        BatchError: the batch is malformed, or an id lies outside a table.
        OutputError: the objective names an output that a model does not have.
        ObjectiveError: the objective fits neither model.
        UnsupportedError: a backend does not support this for its model.
        EmbgradError: the models have no point in common.
    """
    tolerance = check_tolerance(tolerance)
    expect_callable(call_a, "call_a")
    expect_callable(call_b, "call_b")
    tokens = batch_of(batch, tokenizer, max_length, model_a)
    first, second = _pair(objective)
    with reporter(progress) as report:
        a = LiveSide(model_a, tokens, first, call_a).record()
        b = LiveSide(model_b, tokens, second, call_b).record()
        if isinstance(a.failure, ObjectiveError) and b.failure is not None:
            raise a.failure
        done = iter(range(2, PASSES - 3))
        clock = Clock(report=lambda: report(next(done, PASSES - 3), PASSES))
        a, b = with_common_output(a, b)
        inspection = inspect_recordings((a, b), roundoff_for(a, b, _half(a, b)), clock, only_first=True)
        drawn = {}
        for number, (name, side) in enumerate((("a", a), ("b", b))):
            if (tensor := _first_drawn(side)) is not None:
                drawn[name] = tensor
            report(PASSES - 1 + number, PASSES)
    return _bisection(Track(inspection, tolerance), drawn)


def _pair(objective: Any) -> tuple[Any, Any]:
    """Return the objective of a, and that of b."""
    if not isinstance(objective, (tuple, list)):
        return objective, objective
    if len(objective) != 2:
        raise ObjectiveError(
            f"objective is a {type(objective).__name__} of {len(objective)}: expected one objective, or a pair of them, for a "
            "and for b"
        )
    return objective[0], objective[1]


def _bisection(track: Track, drawn: Mapping[str, Tensor]) -> Bisection:
    """Return where two models diverge.

    Args:
        track: the steps of both.
        drawn: by side, "a" or "b", the first tensor that differs when the model is run again.
    """
    at = {name: track.at_or_after(name, tensor) for name, tensor in drawn.items()}
    random = {name: track.role(number, forward=True) for name, number in at.items()}
    divergence = track.forward(at.get("b", at.get("a", 0))) if at else track.first()
    steps, labels = track.steps(divergence), (track.a.label, track.b.label)
    if divergence is None:
        return Bisection(None, None, None, None, (), steps, track.tolerance, random, labels, _agreement(track))
    suspects = track.suspects(divergence)
    module = track.module(divergence, suspects)
    return Bisection(
        first=track.role(divergence.at, forward=divergence.is_forward),
        direction="forward" if divergence.is_forward else "backward",
        after=track.after(divergence),
        module=module,
        parameters=suspects,
        steps=steps,
        tolerance=track.tolerance,
        random=random,
        labels=labels,
        text=_description(track, divergence, suspects, module, random),
    )


def _half(a: Recording, b: Recording) -> str | None:
    """Return the coarser dtype of two models that compute in half precision; None for others."""
    return coarsest((a.dtype, b.dtype)) if a.dtype in HALVES and b.dtype in HALVES else None


def _agreement(track: Track) -> str:
    """Return the sentences about two models that agree."""
    count = len(track.pairs)
    points = f"all {count} points" if count > 1 else "the only point that both have"
    end = "" if track.objective() is None else " and in the objective"
    ways = "forward and backward" if any(point.gradient is not None for point in track.points) else "forward"
    within = "up to rounding" if track.tolerance is None else f"within {track.tolerance:.1e}"
    return " ".join([f"The models agree at {points}{end}, {ways}, {within}.", *_notes(track)])


def _description(
    track: Track, divergence: Divergence, suspects: Sequence[Suspect], module: str | None, random: Mapping[str, str]
) -> str:
    """Return the sentences about the point at which the models diverge."""
    located = _location(track, divergence, module)
    if random:
        return " ".join([_randomness(random), *located, *_notes(track)])
    at, _, is_forward = divergence
    role, after = track.role(at, forward=is_forward), track.after(divergence)
    number = track.names.index(role)
    off = track.objective() if number == len(track.points) else None
    if number < len(track.points):
        off = track.points[number].values if is_forward else track.points[number].gradient
    figure = "" if off is None else f" (relative L2 {off:.1e})"
    if is_forward:
        agreeing = f" and agree before it, at {after!r}" if after else ""
        sentence = f"The values diverge at {role!r}{figure}{agreeing}."
    else:
        end = f"{role!r}{figure}{_unreached(track, at)}"
        sentence = f"All values agree. In the backward pass the gradients agree at {after!r} and diverge at {end}."
    causes = [f"Cause: {cause.text}." for cause in (_causes(track, at) if is_forward else ())]
    texts = [sentence, *located, *_weights(divergence, suspects, is_known=bool(causes)), *causes]
    return " ".join([*texts, *_notes(track)])


def _unreached(track: Track, number: int) -> str:
    """Return the end of a sentence about a point that has a gradient in one model alone."""
    pair = track.pairs[number]
    first, second = track.a.tensors[pair.a].whole_gradient, track.b.tensors[pair.b].whole_gradient
    if (first is None) == (second is None):
        return ""
    return f", which no gradient reaches in {'a' if first is None else 'b'}"


def _location(track: Track, divergence: Divergence, module: str | None) -> list[str]:
    at, before, is_forward = divergence
    places = [] if track.names[at] == track.role(at, forward=is_forward) else [f"diverge at {track.names[at]!r}"]
    if before is not None and track.names[before] != track.after(divergence):
        places.append(f"agree at {track.names[before]!r}")
    points = f"they {' and '.join(places)}" if places else ""
    if module is None:
        return [f"More closely, {points}."] if points else []
    return [f"The difference lies in {module!r}{f': {points}' if points else ''}."]


def _causes(track: Track, at: int) -> tuple[Cause, ...]:
    """Return the known causes of the difference at a point, from inputs that are equal in both models."""
    if at == len(track.pairs):
        return ()
    examined = track.inspection.examined
    sites = [site for site in examined.sites if site.pair.holds(track.pairs[at])]
    known = [entry for entry in track.inspection.explained if entry[0] in sites]
    return causes_of(known or explain_sites(replace(examined, sites=sites)))


def _notes(track: Track) -> list[str]:
    notes = []
    failures = [(name, side.failure) for name, side in (("a", track.a), ("b", track.b)) if side.failure]
    if len(failures) == 2:
        notes.append(f"neither model has gradients, so none were compared: {failures[0][1].message}")
    else:
        notes += [f"{name} alone: {failure.message}" for name, failure in failures]
    depths = count_layers(track.a), count_layers(track.b)
    if depths[0] != depths[1] and all(depths):
        notes.append(f"a has {depths[0]} layers, b {depths[1]}")
    shared = {role: tensor for tensor in track.a.tensors.values() for role in tensor.roles}
    for role, tensor in shared.items():
        other = track.b.by_role(role)
        if other is not None and other.features != tensor.features:
            notes.append(f"at {role!r} a has {tensor.features} features, b {other.features}")
            break
    if track.a.dtype != track.b.dtype:
        notes.append(f"a computes in {track.a.dtype}, b in {track.b.dtype}")
    return [f"{note[:1].upper()}{note[1:]}." for note in notes]


def _randomness(random: Mapping[str, str]) -> str:
    sides, first = " and ".join(random), ", ".join(f"{role!r} in {side}" for side, role in random.items())
    give, draw = ("give", "they draw") if len(random) > 1 else ("gives", "it draws")
    return (
        f"{sides} {give} different results when run again, first at {first}: {draw} random numbers in evaluation mode, for "
        "example by dropout that was left on."
    )


def _weights(divergence: Divergence, suspects: Sequence[Suspect], *, is_known: bool) -> list[str]:
    differing = [suspect for suspect in suspects if suspect.differs]
    if differing:
        named = ", ".join(_weight(suspect) for suspect in differing[:MOST_NAMED])
        more = f" and {len(differing) - MOST_NAMED} more" if len(differing) > MOST_NAMED else ""
        return [f"These of its weights differ: {named}{more}."]
    count = len(suspects)
    agreeing = (
        "Its only weight agrees" if count == 1 else f"Its {count} weights agree" if count else "No weight lies there"
    )
    if divergence.is_forward:
        check = "" if is_known else ": check an epsilon, an activation, a scale, a mask, dropout, a residual"
        return [f"{agreeing}, so the computation there differs{check}."]
    return [
        f"{agreeing}, so the computation of the gradient differs: check for a custom backward pass or a detached tensor."
    ]


def _weight(suspect: Suspect) -> str:
    names = suspect.a or suspect.b
    other = f", in b {suspect.b!r}" if suspect.a and suspect.b and suspect.a != suspect.b else ""
    figure = f", relative L2 {suspect.relative_l2:.1e}" if 0 < suspect.relative_l2 < float("inf") else ""
    return f"{names!r} ({suspect.relation}{figure}{other})"


def _first_drawn(recording: Recording) -> Tensor | None:
    """Return the first tensor that differs when a model is run again; None if all agree.

    The second run has the examples in another order, because embgrad restores the random generators after a run, so that the same
    call draws the same numbers twice. If this order cannot be run, the second run is the same call.
    """
    assert recording.live is not None, "only a model can be run again"
    again, order = _again(recording.live)
    real = recording.batch.real[order]
    most = unit_roundoff(recording.dtype) ** 0.5
    for key, tensor in recording.tensors.items():
        other = again.tensors.get(key)
        if other is None or other.values.shape[1:] != tensor.values.shape[1:]:
            continue
        if difference(tensor.values[order], other.values, real) > most:
            return tensor
    return None


def _again(side: Running) -> tuple[Recording, np.ndarray]:
    """Return a recording of another run, and the indices of the first run's examples in its order."""
    model, call, examples = side.bound.model, side.bound.call, np.arange(len(side.batch))
    order = examples[::-1] if len(examples) > 1 else np.zeros(2, int)
    try:
        if call is None:  # a custom call may depend on the order of the examples
            return LiveSide(model, side.batch.take(order)).record(), order
    except errors_of_model():  # the model may take only one example, or inputs that cannot be reordered
        return LiveSide(model, side.batch).record(), examples
    return LiveSide(model, side.batch, None, call).record(), examples

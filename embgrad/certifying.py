"""Tests a gradient: by finite differences, by the framework's own gradient of the table, by an example run alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from embgrad.backend import NativeObjective
from embgrad.batch import TokenBatch
from embgrad.certificate import Certificate, Slope
from embgrad.errors import CertificationError, UnsupportedError
from embgrad.ledger import ledger
from embgrad.locating import Located, expect_ability
from embgrad.result import EmbeddingGradients
from embgrad.task import Task

__all__ = ["certified"]

#: By the dtype that a model computes in: its rounding, the largest step of finite differences relative to the activations'
#: norm, and how far a right gradient may be off, relative to its own norm.
PRECISION: Final[Mapping[str, tuple[float, float, float]]] = {
    "float64": (2.0**-52, 3e-2, 1e-6),
    "float32": (2.0**-23, 1e-1, 2e-3),
    "float16": (2.0**-10, 5e-1, 1e-1),
    "bfloat16": (2.0**-7, 1.0, 2e-1),
}

#: How many steps are tried, and how much smaller each is than the one before.
STEPS: Final = 5
RATIO: Final = 3.0

#: How uncertain the slope in the gradient's own direction may be, relative to it, to count as a test at all.
ROUGH: Final = 0.2

#: How large an activation counts at least: steps of nothing, or of next to nothing among larger numbers, tell nothing.
LEAST: Final = 1e-2

#: How many directions of random numbers are tried beside the gradient's own.
RANDOM: Final = 2

#: With `split=True` how many examples are tried.
MOST_EXAMPLES: Final = 3


def certified(
    task: Task, batch: TokenBatch, results: Mapping[str, EmbeddingGradients]
) -> dict[str, EmbeddingGradients]:
    """The results with their certificates.

    Raises:
        CertificationError: a gradient is wrong.
        UnsupportedError: it cannot be tested: it was edited, or the forward pass draws random numbers.
    """
    _expect_testable(task)
    located = task.locate(batch)
    scatter = _scatter(task, batch, located)
    done = {}
    for name, result in results.items():
        slopes = tuple(_slopes(task, batch, located, name, result))
        certificate = Certificate(slopes, scatter.get(name), _independence(task, batch, located[name], name, result))
        _expect_right(name, certificate, PRECISION[result.provenance["compute_dtype"]][2])
        done[name] = replace(result, certificate=certificate)
    return done


def _expect_testable(task: Task) -> None:
    if task.changes.get("edit"):
        raise UnsupportedError(
            "check=True tests that a gradient is the objective's, and edit=... puts another in its place: leave one of them out"
        )
    if task.training:
        raise UnsupportedError(
            "check=True compares forward passes with each other, and training=True draws random numbers in each: leave one of "
            "them out"
        )
    expect_ability(task.backend, "add")


def _expect_right(name: str, certificate: Certificate, tolerance: float) -> None:
    wrong = [slope for slope in certificate.slopes if not slope.holds]
    if wrong:
        one = wrong[0]
        raise CertificationError(
            f"the gradient at {name!r} is wrong: in the direction {one.direction!r} it makes the objective change by "
            f"{one.expected:.6g}, and finite differences by {one.found:.6g} (± {one.uncertainty:.2g}); {len(wrong)} of "
            f"{len(certificate.slopes)} directions differ. Expected a backward pass that is the derivative of the forward pass: "
            "look for custom gradients, straight-through estimators and detached parts behind the point",
            certificate,
        )
    rough = [
        one
        for one in certificate.slopes
        if one.direction.startswith("gradient") and _is_rough(one.expected, one.found, one.uncertainty)
    ]
    if rough:
        raise CertificationError(
            f"the gradient at {name!r} could not be tested: in its own direction the objective changes by "
            f"{rough[0].expected:.3g}, and finite differences are uncertain by {rough[0].uncertainty:.2g}; expected an objective "
            "that changes by more than its rounding: give the model in float64, or an objective of its scale",
            certificate,
        )
    if certificate.scatter is not None and certificate.scatter > tolerance:
        raise CertificationError(
            f"the gradient at {name!r} and the framework's own gradient of the table differ by {certificate.scatter:.2g} "
            "(relative): expected the sum over its lookups and its other uses; does the table rescale its gradient "
            "(scale_grad_by_freq), or have a hook?",
            certificate,
        )


# Finite differences


def _slopes(
    task: Task, batch: TokenBatch, located: Mapping[str, Located], point: str, result: EmbeddingGradients
) -> Iterator[Slope]:
    """Finite differences in the gradient's own direction and in random ones."""
    rounding, step, tolerance = PRECISION[result.provenance["compute_dtype"]]
    norm = float(np.linalg.norm(result.values.astype(np.float64)))
    one = located[point]
    for name, direction, example in _directions(result, one.place.shared, task.split):
        if example is None:
            change, gradient = direction, result.values.astype(np.float64)
        else:
            change, gradient = np.zeros_like(direction), np.zeros_like(direction)
            change[example], gradient[example] = direction[example], result.values[example]
        if one.place.shared:
            change = np.broadcast_to(change.mean(0), change.shape)
        expected = float((gradient * change).sum())

        def value(step: float, change: np.ndarray = change, example: int | None = example) -> tuple[float, float]:
            moved = _own(one, change * step)
            values, size = task.objective_with(batch, located, one.key, lambda _: moved)
            return float(values.sum() if example is None else values[example]), size

        found, uncertainty = _difference(value, step, rounding)
        share = norm * float(np.linalg.norm(change)) / np.sqrt(max(change.size, 1))
        allowed = 4 * uncertainty + tolerance * max(abs(expected), abs(found), share)
        yield Slope(name, expected, found, uncertainty, allowed)


def _is_rough(expected: float, found: float, uncertainty: float) -> bool:
    return uncertainty > ROUGH * min(abs(expected), abs(found))


def _own(located: Located, change: np.ndarray) -> np.ndarray:
    return change[0].reshape(located.place.native) if located.place.shared else located.place.own(change)


def _directions(result: EmbeddingGradients, shared: bool, split: bool) -> Iterator[tuple[str, np.ndarray, int | None]]:
    """Directions as long as the activations, with the example that they are for."""
    random = np.random.default_rng(0)
    values = result.values.astype(np.float64)
    counted = values != 0 if result.provenance["pads"] == "zero" else np.ones(values.shape, bool)
    drawn = {f"random {number + 1}": random.normal(size=values.shape) * counted for number in range(RANDOM)}
    for name, direction in {"gradient": values, **drawn}.items():
        length = np.linalg.norm(direction)
        if length:
            scaled = direction * (max(float(np.linalg.norm(result.activations)), LEAST * values.size**0.5) / length)
            if split and not shared:
                for example in range(min(len(scaled), MOST_EXAMPLES)):
                    if scaled[example].any():
                        yield f"{name}, example {example}", scaled, example
            else:
                yield name, scaled, None


def _difference(value: Callable[[float], tuple[float, float]], largest: float, rounding: float) -> tuple[float, float]:
    """The slope at zero by central differences, and how far it may be off.

    Neighbouring steps are combined to fourth order (Richardson). Of these slopes the one is taken that is known best: its
    truncation shows as its distance from the next one, its rounding as that of the objective over the step.
    """
    steps = [largest / RATIO**number for number in range(STEPS)]
    sides = [(value(step), value(-step)) for step in steps]
    plain = [(more - less) / (2 * step) for step, ((more, _), (less, _)) in zip(steps, sides, strict=True)]
    square = RATIO**2
    combined = [(square * narrow - wide) / (square - 1) for wide, narrow in pairwise(plain)]
    noise = [4 * rounding * max(size) / step for step, ((_, *size), _) in zip(steps[1:], sides[1:], strict=True)]
    known = [
        (abs(one - other) + rough, other) for (one, other), rough in zip(pairwise(combined), noise[1:], strict=True)
    ]
    uncertainty, slope = min(known)
    return slope, uncertainty


# The table's own gradient


def _scatter(task: Task, batch: TokenBatch, located: Mapping[str, Located]) -> dict[str, float]:
    """For each lookup that is read how far the framework's own gradient of its table is from the sum of its parts."""
    if any(task.changes.values()) or not {"parameters", "tables"} <= task.backend.supports:
        return {}
    paths = {name: one.lookup.path for name, one in located.items() if one.lookup is not None}
    seen = task.backend.points(task.model, batch, task.call) if paths else ()
    apart: dict[str, float] = {}
    for path in dict.fromkeys(paths.values()):
        found = ledger(task, batch, path, seen)
        if found is not None and found.apart is not None:
            apart[path] = found.apart
    return {name: apart[path] for name, path in paths.items() if path in apart}


# An example alone


def _independence(
    task: Task, batch: TokenBatch, located: Located, name: str, result: EmbeddingGradients
) -> float | None:
    """How far the first example's gradient is from that of a batch of it alone."""
    scalar = isinstance(task.objective, NativeObjective) and task.objective.scalar
    if len(batch) < 2 or scalar or not located.place.is_batch:
        return None
    start, count = task.examples.start or 0, task.count or len(batch)
    alone = replace(task.cut(slice(0, 1), len(batch)), examples=slice(start, start + 1), count=count)
    try:
        values = replace(alone, names=(name,)).run(batch[:1])[name].values[0]
    except Exception:  # a model may take no other number of examples: then nothing is known
        return None
    scale = float(np.linalg.norm(result.values[0])) or 1.0
    return float(np.linalg.norm(values - result.values[0])) / scale

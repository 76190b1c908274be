"""The hypothesis that one side ran with dropout: models are run several times, and their runs compared."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.comparison.diagnosis.case import EXACT
from embgrad.comparison.diagnosis.findings import Finding
from embgrad.comparison.diagnosis.rerun import Source, Variant

__all__ = ["dropout", "random_model"]

#: The number of runs of a model.
DRAWS: Final = 6

#: The least mean cosine between runs: if they are less similar, any gradient would look like one of them.
LEAST_ALIKE: Final = 0.15

#: The factor by which the target's distances may lie outside the range of the runs' distances.
BEYOND: Final = 1.25


def dropout(source: Source) -> Finding | None:
    """Return a finding if the target's distances to the model's runs in training mode are like the runs' distances to each other.

    The random numbers differ from run to run, so that the target itself cannot be predicted, but only its distance from each run
    and from the source. Other faults of that size would pass this test too. It is therefore used only if the recorded mode says
    that the target was not computed in evaluation mode.
    """
    case = source.case
    runs = _draws(source, training=True)
    if runs is None:
        return None
    target, source_values = case.wanted[case.matched].ravel(), case.values[case.matched].ravel()
    if np.mean([_cosine(run, other) for i, run in enumerate(runs) for other in runs[:i]]) < LEAST_ALIKE:
        return None
    among = [[_distance(run, other) for other in runs if other is not run] for run in runs]
    checks = (
        (float(np.mean([_distance(target, run) for run in runs])), [float(np.mean(distances)) for distances in among]),
        (_distance(target, source_values), [_distance(run, source_values) for run in runs]),
        (float(np.linalg.norm(target)), [float(np.linalg.norm(run)) for run in runs]),
    )
    if not all(min(usual) / BEYOND <= seen <= max(usual) * BEYOND for seen, usual in checks):
        return None
    length, seen = float(np.linalg.norm(source_values)), checks[1][0]
    usual = float(np.mean(checks[1][1]))
    text = (
        f"dropout: {source.target} lies as far from {source.name} (relative L2 {seen / length:.2g}) as {source.name}'s model "
        f"in training mode ({usual / length:.2g} on average over {DRAWS} runs), and from these runs as they from each other"
    )
    return _finding(text, min(1.0, (usual / seen) ** 2), seen / length, case.side)


def random_model(source: Source) -> Finding | None:
    """Return a finding if the source's model gives another gradient each time it runs in evaluation mode."""
    case = source.case
    runs = _draws(source, training=False)
    if runs is None:
        return None
    source_values, target = case.values[case.matched].ravel(), case.wanted[case.matched].ravel()
    spread = float(np.mean([_distance(run, other) for i, run in enumerate(runs) for other in runs[:i]])) / 2**0.5
    length, seen = float(np.linalg.norm(source_values)), _distance(source_values, target)
    if not seen or spread <= 2 * EXACT * case.tolerance * length:
        return None
    text = (
        f"dropout: {source.name}'s model gives another gradient each time it is run, in evaluation mode too, "
        f"{spread / length:.2g} off its own mean (over {DRAWS} runs)"
    )
    side = "a" if case.side == "b" else "b"
    return _finding(text, min(1.0, (spread / seen) ** 2), seen / length, side)


def _finding(text: str, explained: float, distance: float, side: str) -> Finding:
    return Finding(("dropout",), text, explained, distance * max(0.0, 1 - explained) ** 0.5, side)


def _draws(source: Source, *, training: bool) -> list[np.ndarray] | None:
    """Return the model's flat gradients from several runs with different random numbers, at the positions that are compared."""
    case, runs = source.case, []
    for _ in range(DRAWS):
        run = source.attempt("dropout", lambda: source.result(Variant(("dropout",), "", training=True)))
        if run is not None and not training:
            # The run in training mode has advanced the random generators; evaluation mode alone would restore them.
            run = source.attempt("dropout", lambda: source.result(Variant(("dropout",), "")))
        if run is None:
            return None
        runs.append(run.values.astype(np.float64).reshape(case.values.shape)[case.matched].ravel())
    return runs


def _cosine(first: np.ndarray, second: np.ndarray) -> float:
    lengths = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    return float((first / lengths[0]) @ (second / lengths[1])) if all(lengths) else 0.0


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.linalg.norm(first - second))

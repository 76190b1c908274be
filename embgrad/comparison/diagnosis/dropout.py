"""The hypothesis that a model draws random numbers in evaluation mode."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.comparison.diagnosis.case import EXACT
from embgrad.comparison.diagnosis.rerun import AS_IT_WAS, Source, Variant
from embgrad.comparison.findings import Finding

__all__ = ["random_model"]

#: The number of runs of a model that is random.
DRAWS: Final = 6

#: A run in training mode, which advances the random generators; a run in evaluation mode restores them.
TRAINING: Final = Variant(("dropout",), "", training=True)


def random_model(source: Source) -> Finding | None:
    """Return a finding if the source's model gives another gradient each time it runs in evaluation mode."""
    case = source.case
    source_values, target = case.values[case.matched].ravel(), case.wanted[case.matched].ravel()
    length, seen = float(np.linalg.norm(source_values)), float(np.linalg.norm(source_values - target))
    runs: list[np.ndarray] = []
    spread = float("inf")
    while len(runs) < DRAWS:
        values = None if source.values(TRAINING) is None else source.values(AS_IT_WAS)
        if values is None:
            return None
        runs.append(values[case.matched].ravel())
        distances = [float(np.linalg.norm(run - other)) for i, run in enumerate(runs) for other in runs[:i]]
        spread = float(np.mean(distances)) / 2**0.5 if distances else spread
        if spread <= 2 * EXACT * case.tolerance * length:
            return None
    if not seen:
        return None
    text = (
        f"dropout: {source.name}'s model gives another gradient each time it is run, in evaluation mode too, "
        f"{spread / length:.2g} off its own mean (over {DRAWS} runs)"
    )
    explained = min(1.0, (spread / seen) ** 2)
    return Finding(("dropout",), text, explained, seen / length * max(0.0, 1 - explained) ** 0.5, source.name)

"""The hypothesis of recurrent layers, whose gates, biases, functions or directions differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.recurrence import Recurrence
from embgrad.comparison.hypotheses.recurrent_changes import Change, changes_of
from embgrad.comparison.hypotheses.recurrent_fit import Few, Fit, fits
from embgrad.comparison.hypotheses.site import Explanation, Site, Values, together
from embgrad.comparison.hypotheses.sources import NEAR, most_off

__all__ = ["Recurrent"]

#: The most changes of a reference that are found at one site, and how many of the nearest have further ones added to them.
MOST_CHANGES: Final = 3
NEAREST: Final = 3

#: The share of what a change leaves that a further one may leave.
LEAST_GAIN: Final = 0.8


class Recurrent:
    """Recurrent layers: LSTM, GRU or plain cells."""

    causes = (
        "recurrence",
        "permuted-weight",
        "transposed-weight",
        "swapped-weights",
        "half-weights",
        "different-weight",
        "missing-bias",
        "missing-part",
        "activation",
        "mask-ignored",
    )

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the recurrences of both models differ; an empty list where a computes none."""
        fit = next(fits(site), None)
        return [] if fit is None else _explained(site, fit)


def _explained(site: Site, fit: Fit) -> list[Explanation]:
    """Return the fewest changes of the reference that predict the port's output, as explanations that hold together."""
    few = Few(fit)
    most = max(NEAR, most_off(site))
    changes = list(changes_of(site, fit))
    nearest: list[tuple[float, tuple[Change, ...], Recurrence]] = [
        (few.off(fit.recurrence, site.b), (), fit.recurrence)
    ]
    for _ in range(MOST_CHANGES):
        tried = []
        for off, earlier, recurrence in nearest:
            for change in changes:
                changed = change.apply(recurrence)
                left = few.off(changed, site.b)
                if left <= most and site.off(fit.outputs(changed, fit.entry.values)) <= most:
                    return _explanations(fit, (*earlier, change), changed)
                if left < LEAST_GAIN * off:
                    tried.append((left, (*earlier, change), changed))
        nearest = sorted(tried, key=lambda entry: entry[0])[:NEAREST]
    return []


def _explanations(fit: Fit, changes: Sequence[Change], recurrence: Recurrence) -> list[Explanation]:
    name = fit.entry.name

    def compute(at: Values) -> np.ndarray:
        return fit.outputs(recurrence, at(name))

    predicted = fit.outputs(recurrence, fit.entry.values)
    return together(
        [
            Explanation(change.cause, fit.path, ("a's own", "b's"), predicted, compute, (name,), change.sentence)
            for change in changes
        ]
    )

"""The hypothesis of recurrent layers, whose gates, biases, functions or directions differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

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

#: How many of the changes that leave least are tried as further ones.
FURTHER: Final = 60


class _Tried(NamedTuple):
    """Changes of the reference, and the relative L2 of the port's output against what they lead to."""

    off: float
    changes: tuple[Change, ...]
    recurrence: Recurrence


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
        "pooling",
    )

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the recurrences of both models differ; an empty list where a computes none."""
        fit = next(fits(site), None)
        return [] if fit is None else _explained(site, fit)


def _explained(site: Site, fit: Fit) -> list[Explanation]:
    """Return the fewest changes of the reference that predict the port's output, as explanations that hold together."""
    few, most = Few(fit), max(NEAR, most_off(site))
    changes = list(changes_of(site, fit))
    nearest: list[_Tried] = [_Tried(few.off(fit.recurrence, site.b), (), fit.recurrence)]
    for _ in range(MOST_CHANGES):
        tried = []
        for off, earlier, recurrence in nearest:
            for change in changes:
                changed = change.apply(recurrence)
                left = few.off(changed, site.b)
                if left <= most and site.off(fit.outputs(changed, fit.entry.values)) <= most:
                    return _explanations(fit, (*earlier, change), changed)
                if left < off:
                    tried.append(_Tried(left, (*earlier, change), changed))
        tried.sort(key=lambda entry: entry.off)
        changes = list(dict.fromkeys(entry.changes[-1] for entry in tried))[:FURTHER]
        nearest = tried[:NEAREST]
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

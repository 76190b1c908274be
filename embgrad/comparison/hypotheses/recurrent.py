"""The hypothesis of recurrent layers, whose gates, biases, functions or directions differ."""

from __future__ import annotations

from embgrad.comparison.hypotheses.changes import explained_by_changes
from embgrad.comparison.hypotheses.recurrent_changes import changes_of
from embgrad.comparison.hypotheses.recurrent_fit import fits
from embgrad.comparison.hypotheses.site import Explanation, Site

__all__ = ["Recurrent"]


class Recurrent:
    """Recurrent layers: LSTM, GRU or plain cells."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return how the recurrences of both models differ; an empty list where a computes none."""
        fit = next(fits(site), None)
        if fit is None:
            return []
        return explained_by_changes(site, fit.recurrence, list(changes_of(site, fit)), fit, fit.path)

"""The hypothesis of dropout that was left on: features of an earlier tensor are zeros at random, and the others are larger."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.hypotheses.sources import sources

__all__ = ["Dropout"]

#: The most tensors before a site that may have been dropped from.
MOST: Final = 12

#: The largest relative difference of the kept features' factors.
NEAR: Final = 1e-3

#: The shares of features that dropout drops.
LEAST_RATE: Final = 0.005
MOST_RATE: Final = 0.75


class Dropout:
    """Dropout of a tensor, which may be a term of the output."""

    causes = ("dropout",)

    def explain(self, site: Site) -> list[Explanation]:
        """Return which model drops features; an empty list where neither does."""
        a, b = site.rows(site.a), site.rows(site.b)
        for source in sources(site, MOST):
            if source.values.shape != site.a.shape:
                continue
            for name, other, step in (("b", "a", b - a), ("a", "b", a - b)):
                if _is_dropped(site.rows(source.values), step):
                    sentence = (
                        f"{name} draws random numbers in evaluation mode: dropout was left on, and is off in {other}"
                    )
                    values = ("off", "left on") if name == "b" else ("left on", "off")
                    return [Explanation("dropout", "dropout is", values, site.b, sentence=sentence)]
        return []


def _is_dropped(values: np.ndarray, step: np.ndarray) -> bool:
    """Return whether values + step are the values with some of them zeros and the others times 1 / (1 - rate)."""
    large = np.abs(values) > NEAR * np.abs(values).max(initial=0.0)
    ratio = step[large] / values[large]
    dropped = ratio < -0.5
    rate = float(dropped.mean()) if ratio.size else 0.0
    if not LEAST_RATE <= rate <= MOST_RATE or (~dropped).sum() < 2:
        return False
    factor = float(np.median(ratio[~dropped]))
    wanted = np.where(dropped, -1.0, factor)
    expected = factor / (1 + factor)  # the rate for which 1 / (1 - rate) is the kept features' factor
    spread = 4 * np.sqrt(expected * (1 - expected) / ratio.size) if 0 < expected < 1 else 0.0
    return bool(factor > 0 and abs(expected - rate) <= spread and (np.abs(ratio - wanted) <= NEAR * (1 + factor)).all())

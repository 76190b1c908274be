"""The hypothesis of dropout that was left on: features of an earlier tensor are zeros at random, and the others are larger."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.hypotheses.sources import sources

__all__ = ["Dropout", "is_dropped_in", "left_on"]

#: The largest relative difference of the kept features' factors.
NEAR: Final = 1e-3

#: The shares of features that dropout drops.
LEAST_RATE: Final = 0.005
MOST_RATE: Final = 0.75

#: The condition number of values up to which they determine their weights.
MOST_CONDITION: Final = 1e3


class Dropout:
    """Dropout of a tensor, which may be a term of the output."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return which model drops features; an empty list where neither does."""
        a, b = site.rows(site.a), site.rows(site.b)
        for source in sources(site):
            if source.values.shape != site.a.shape:
                continue
            for name, other, step in (("b", "a", b - a), ("a", "b", a - b)):
                if _is_dropped(site.rows(source.values), step):
                    return [left_on(site, name, other)]
        return []


def left_on(site: Site, name: str, other: str) -> Explanation:
    """Return the explanation that one model drops features and the other does not."""
    sentence = f"{name} draws random numbers in evaluation mode: dropout was left on, and is off in {other}"
    values = ("off", "left on") if name == "b" else ("left on", "off")
    return Explanation("dropout", "dropout is", values, site.b, sentence=sentence)


def is_dropped_in(core: Core, wanted: np.ndarray) -> bool:
    """Return whether an output is a core's, with some weights of the values dropped at random.

    The weights are those that give the output: the heads' values determine them where a query sees few keys for the features of a
    head.

    Args:
        core: the core without dropout.
        wanted: the output, (example, position, head × feature).
    """
    if core.joined != "by head":
        return False
    weights, values = core.weights(core.whole), core.taken(core.whole)
    outputs = core.whole.of(wanted, core.value_size).transpose(0, 2, 1, 3)
    usual, steps = [], []
    for example, query in np.argwhere(core.real[:, : outputs.shape[2]]):
        seen = np.flatnonzero(weights[example, :, query].any(0))
        if not 0 < 2 * len(seen) <= core.value_size or np.linalg.cond(values[example][:, seen]).max() > MOST_CONDITION:
            continue  # a token that stands twice has one value, so that only the sum of its weights is known
        inverse = np.linalg.pinv(values[example][:, seen])
        found = (outputs[example, :, query, None] @ inverse)[:, 0]
        again = (found[:, None] @ values[example][:, seen])[:, 0]
        if np.linalg.norm(again - outputs[example, :, query]) > NEAR * np.linalg.norm(again):
            return False
        usual.append(weights[example, :, query, seen].T.ravel())
        steps.append(found.ravel() - usual[-1])
    return bool(usual) and _is_dropped(np.concatenate(usual), np.concatenate(steps))


def _is_dropped(values: np.ndarray, step: np.ndarray) -> bool:
    """Return whether values + step are the values with some of them zeros and the others times 1 / (1 - rate)."""
    large = np.abs(values) > NEAR * np.abs(values).max()
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

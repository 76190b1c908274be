"""The hypothesis of a skipped part: the port goes on with a tensor that the reference computes something more from."""

from __future__ import annotations

import numpy as np

from embgrad.comparison.hypotheses.site import Before, Explanation, Site
from embgrad.comparison.hypotheses.sources import most_off
from embgrad.comparison.hypotheses.terms import Sum, sums
from embgrad.comparison.recording import Recording
from embgrad.comparison.sites import count_layers, name_of
from embgrad.model_points.points import INPUT, OUTPUT
from embgrad.model_points.roles import LAYER

__all__ = ["Skipped"]


class Skipped:
    """A part that only the reference has, such as a layer, so that the port's output is a tensor before it."""

    causes = ("missing-part",)

    def explain(self, site: Site) -> list[Explanation]:
        """Return the nearest tensor that the port's output equals up to rounding; an empty list where there is none.

        Where both models have as many layers, a point may have a wrong partner, whose values say nothing of a skipped part. A
        vector of each text has no such partner.
        """
        first, second = (count_layers(side) for side in site.recordings)
        is_pooled = site.a.shape[1] == 1 < site.ids.shape[1]
        if not is_pooled and (first == second or not (first and second)):
            return []
        for computed in sorted(sums(site), key=lambda computed: bool(computed.name)):  # without a norm first
            for before in site.before:
                if before.values.shape != site.a.shape or (is_pooled and _calls_as_often(site, before)):
                    continue
                if site.off(computed.apply(before.values)) <= most_off(site):
                    return [_explanation(site, before, computed)]
        return []


def _calls_as_often(site: Site, before: Before) -> bool:
    """Return whether b calls a module whose partner a calls between a tensor and the site, and as often, so as to lack none."""
    a, b = site.recordings
    tensors = {name_of(tensor): tensor for tensor in a.tensors.values()}
    end, start = a.tensors[site.pair.a].time, tensors[before.name].time if before.name in tensors else -np.inf
    between = {tensor.path for tensor in tensors.values() if tensor.side == OUTPUT and start < tensor.time <= end}
    own, others = ({weight.name: weight.module for weight in side.weights} for side in (a, b))
    partners = {own[match.a]: others[match.b] for match in site.matching.matches if own[match.a] in between}
    return any(0 < _calls(a, path) <= _calls(b, partner) for path, partner in partners.items())


def _calls(recording: Recording, path: str) -> int:
    return sum(tensor.path == path and tensor.side == OUTPUT for tensor in recording.tensors.values())


def _explanation(site: Site, before: Before, computed: Sum) -> Explanation:
    start = _holder(site.recordings[0], before.values) or before.name
    end = _holder(site.recordings[0], computed.whole) or _holder(site.recordings[0], site.a) or site.name
    return Explanation(
        "missing-part",
        f"the part between {start} and {end} is",
        ("computed", "missing"),
        computed.apply(before.values),
        lambda at: computed.apply(at(before.name)),
        (before.name,),
        f"b lacks what a computes between {start} and {end}",
    )


def _holder(recording: Recording, values: np.ndarray) -> str | None:
    """Return a name of the first point with a role, or else of the first output, that has these values; None for none."""
    equal = [
        tensor
        for tensor in recording.tensors.values()
        if tensor.side != INPUT and tensor.values.shape == values.shape and np.array_equal(tensor.values, values)
    ]
    if not equal:
        return None
    first = min(equal, key=lambda tensor: not tensor.roles)
    layers = (role for role in first.roles if role.startswith(f"{LAYER}."))
    return next((role.replace(".", " ") for role in layers), name_of(first))

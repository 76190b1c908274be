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

__all__ = ["Skipped", "calls_as_often", "modules_between"]


class Skipped:
    """A part that only the reference has, such as a layer, so that the port's output is a tensor before it."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return the nearest tensor that the port's output equals up to rounding; an empty list where there is none.

        Where both models have as many layers, a point may have a wrong partner, whose values say nothing of a skipped part,
        unless the port multiplies with no matrix of the part. A vector of each text has no such partner.
        """
        first, second = (count_layers(side) for side in site.recordings)
        is_pooled = site.a.shape[1] == 1 < site.ids.shape[1]
        has_other_layers = first != second and bool(first and second) and not is_pooled
        left_out = {} if has_other_layers or is_pooled else _matrices_left_out(site)
        if not (has_other_layers or is_pooled or left_out):
            return []
        for computed in sorted(sums(site), key=lambda computed: bool(computed.name)):  # without a norm first
            for before in site.before:
                if before.values.shape != site.a.shape or site.off(computed.apply(before.values)) > most_off(site):
                    continue
                between = modules_between(site, before.name, name_of(site.recordings[0].tensors[site.pair.a]))
                of_part = [left_out[module] for module in between & left_out.keys()]
                lacks_matrices = bool(of_part) and all(of_part)
                lacks_calls = is_pooled and not calls_as_often(site, between)
                if has_other_layers or lacks_calls or lacks_matrices:
                    return [_explanation(site, before, computed)]
        return []


def modules_between(site: Site, first: str, second: str) -> set[str]:
    """Return the paths of the modules that a calls between two tensors, by their names in either order, with the later one's.

    They are all that it calls before the later one where there is no tensor of the other name.
    """
    tensors = [tensor for tensor in site.recordings[0].tensors.values() if tensor.side == OUTPUT]
    times = {name_of(tensor): tensor.time for tensor in site.recordings[0].tensors.values()}
    start, end = sorted(times.get(name, -np.inf) for name in (first, second))
    return {tensor.path for tensor in tensors if start < tensor.time <= end}


def calls_as_often(site: Site, modules: set[str]) -> bool:
    """Return whether b calls the partner of one of a's modules as often as a does, so as to lack none."""
    a, b = site.recordings
    own, others = ({weight.name: weight.module for weight in side.weights} for side in (a, b))
    partners = {own[match.a]: others[match.b] for match in site.matching.matches if own[match.a] in modules}
    return any(0 < _calls(a, path) <= _calls(b, partner) for path, partner in partners.items())


def _calls(recording: Recording, path: str) -> int:
    return sum(tensor.path == path and tensor.side == OUTPUT for tensor in recording.tensors.values())


def _matrices_left_out(site: Site) -> dict[str, bool]:
    """Return for each module of a with a matrix of both whether b never multiplies with it; empty where it uses all."""
    held = {weight.name: weight for weight in site.recordings[0].weights if len(weight.shape) > 1}
    others = {weight.name: weight.module for weight in site.recordings[1].weights}
    used = {tensor.path for tensor in site.recordings[1].tensors.values()} - {""}
    left_out = {
        held[match.a].module: not used & {match.b, others[match.b]}
        for match in site.matching.matches
        if match.a in held
    }
    return left_out if len({*left_out.values()}) > 1 else {}


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

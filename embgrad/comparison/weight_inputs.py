"""Match vectors of two models by what their modules are given, where one model applies them in each other's place."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import replace

from embgrad.comparison.recording import HeldWeight, Recording
from embgrad.comparison.weight_matches import Match, Matching
from embgrad.comparison.weight_places import at_one_place
from embgrad.model_points.points import INPUT, OUTPUT

__all__ = ["with_exchanged_in_place"]


def with_exchanged_in_place(matching: Matching, a: Recording, b: Recording) -> Matching:
    """Return the matching, with two norms of a layer of which b applies each with the weights of the other paired by place.

    Two norms, as of queries and keys, may be called in either order, so what they are given shows which is which: in a the
    product with a matrix goes to one norm, and in b the product with its partner to the other. Both are called in both models: a
    norm that b leaves out is in no other one's place.

    Args:
        matching: the weights by their partners.
        a: the recording of a.
        b: that of b.
    """
    held_a, held_b = ({weight.name: weight for weight in side.weights} for side in (a, b))
    matrices = {held_a[it.a].module: held_b[it.b].module for it in matching.matches if len(held_a[it.a].shape) > 1}
    by_layer: dict[int, list[Match]] = defaultdict(list)
    for match in matching.matches:
        weight = held_a[match.a]
        if weight.layer is not None and match.is_equal and len(weight.shape) == 1 and weight.module not in matrices:
            by_layer[weight.layer].append(match)
    sources_a, sources_b = _sources_of(a), _sources_of(b)
    changed: dict[str, Match] = {}
    for first, second in itertools.chain(*(itertools.combinations(found, 2) for found in by_layer.values())):
        mine, its = held_a[first.a], held_a[second.a]
        others = [held_b[it.b].module for it in (second, first)]
        if not ({mine.module, its.module} <= sources_a.keys() and {*others} <= sources_b.keys()):
            continue
        wanted = [matrices.get(sources_a[it.module], "") for it in (mine, its)]
        given = [sources_b[module] for module in others]
        if mine.shape == its.shape and _kind_of(mine) == _kind_of(its) and wanted[0] != wanted[1] and wanted == given:
            changed[first.a] = at_one_place(mine, held_b[second.b], {second.b: second.a})
            changed[second.a] = at_one_place(its, held_b[first.b], {first.b: first.a})
    return replace(matching, matches=tuple(changed.get(match.a, match) for match in matching.matches))


def _kind_of(weight: HeldWeight) -> str:
    """Return the part of a weight's name behind its module's path."""
    return weight.name.removeprefix(weight.module)


def _sources_of(recording: Recording) -> dict[str, str]:
    """Return by the paths of modules without a matrix the module with one whose output they are given; "" for another tensor."""
    matrices = dict.fromkeys(weight.module for weight in recording.weights if len(weight.shape) > 1)
    outputs = ((path, recording.of_module(path, OUTPUT)) for path in matrices)
    by_values = {tensor.values.tobytes(): path for path, tensor in outputs if tensor is not None}
    others = dict.fromkeys(weight.module for weight in recording.weights if weight.module not in matrices)
    inputs = ((path, recording.of_module(path, INPUT)) for path in others)
    return {path: by_values.get(tensor.values.tobytes(), "") for path, tensor in inputs if tensor is not None}
